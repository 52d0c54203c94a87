//! Writes the sound inputs of every target into its corpus: for a fuzzer to begin with.
//!
//!   cargo run -p tenure-fuzz --example seeds

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    for target in tenure_fuzz::TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        fs::create_dir_all(&directory)?;
        for (number, seed) in (target.seeds)().into_iter().enumerate() {
            fs::write(directory.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
