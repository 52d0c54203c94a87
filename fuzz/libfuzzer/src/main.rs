//! One target of `tenure-fuzz`, the one that `TENURE_FUZZ_TARGET` names, driven by libFuzzer.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::Target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("TENURE_FUZZ_TARGET").expect("TENURE_FUZZ_TARGET names a target");
    tenure_fuzz::target(&name).expect("TENURE_FUZZ_TARGET names a target")
});

fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
