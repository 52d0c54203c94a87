//! What a process has used so far, read from `/proc`.
//!
//! CPU time is that of all its threads, user and system, in ticks of a hundredth of a second: good
//! enough for runs of some seconds, and immune to what else the machine does meanwhile.

use std::time::Duration;

/// Linux counts process times in units of `USER_HZ`, which is 100 on every architecture Tenure runs on.
const TICK: Duration = Duration::from_millis(10);
const PAGE_BYTES: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub cpu: Duration,
    pub resident_bytes: u64,
}

/// The usage of a running process; None if there is no such process.
pub fn usage(pid: u32) -> Option<Usage> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The usage of some running processes together; None if there are none, or not all of them.
pub fn usage_of_all(pids: &[u32]) -> Option<Usage> {
    let together = |left: Usage, right: Usage| Usage {
        cpu: left.cpu + right.cpu,
        resident_bytes: left.resident_bytes + right.resident_bytes,
    };
    let usages: Option<Vec<Usage>> = pids.iter().map(|pid| usage(*pid)).collect();
    usages?.into_iter().reduce(together)
}

fn parse(stat: &str) -> Option<Usage> {
    // The second field is the command in parentheses and may itself hold blanks and parentheses.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = number(11)? + number(12)?;
    Some(Usage { cpu: TICK * u32::try_from(ticks).ok()?, resident_bytes: number(21)? * PAGE_BYTES })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_blanks_and_parentheses_is_skipped() {
        let stat =
            "7 (a (b) c) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 9 0 100 1000000 512 18446744073709551615 1";
        assert_eq!(parse(stat), Some(Usage { cpu: Duration::from_secs(2), resident_bytes: 512 * 4096 }));
    }

    #[test]
    fn this_process_exists_and_the_largest_number_does_not() {
        assert!(usage(std::process::id()).is_some_and(|usage| usage.resident_bytes > 0));
        assert_eq!(usage(u32::MAX), None);
    }

    #[test]
    fn several_processes_add_up_if_all_of_them_are_there() {
        let (one, resident) = (std::process::id(), |pids: &[u32]| Some(usage_of_all(pids)?.resident_bytes));
        assert!(resident(&[one, one]) > resident(&[one]));
        assert_eq!((resident(&[]), resident(&[one, u32::MAX])), (None, None));
    }
}
