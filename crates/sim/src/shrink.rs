//! From a seed that breaks a rule to what is worth reading: the fewest faults that still break it, and a
//! timeline.

use crate::world::{Report, Setting, Violation, run};

/// Runs a seed. If it breaks a rule, drops its faults one by one while some rule is still broken, and runs what
/// is left again for its timeline.
pub fn explain(setting: &Setting) -> Result<Report, Box<Violation>> {
    let quiet = Setting { lines: 0, ..setting.clone() };
    let violation = match run(&quiet) {
        Ok(report) => return Ok(report),
        Err(violation) => violation,
    };
    let mut kept = violation.faults.clone();
    for fault in violation.faults.clone() {
        let fewer: Vec<&'static str> = kept.iter().copied().filter(|other| *other != fault).collect();
        if run(&Setting { faults: Some(fewer.clone()), ..quiet.clone() }).is_err() {
            kept = fewer;
        }
    }
    let all = (kept.len() < violation.faults.len()).then_some(violation.faults);
    let shrunk = run(&Setting { faults: Some(kept), ..setting.clone() });
    shrunk.map_err(|mut violation| {
        violation.all_faults = all;
        violation
    })
}
