//! The lifecycle by hand: a TTL of 9,000 ms is renewed at 3,000, given up at 4,500 and has its
//! deadline at 8,800.

use super::*;
use Effect::{Cancel, Confirmed, Lost, SendRenewal, Warn};

const TTL_MS: u64 = 9_000;
const DEADLINE_MS: u64 = 8_800;
const PATIENCE_MS: u64 = 1_500;

fn lease() -> Lifecycle {
    Lifecycle::new(CancelAt::Deadline, 0, TTL_MS)
}

fn tick(lifecycle: &mut Lifecycle, now_ms: u64) -> Vec<Effect> {
    lifecycle.step(now_ms, Input::Tick)
}

fn answer(lifecycle: &mut Lifecycle, now_ms: u64, number: u64, ttl_ms: u64) -> Vec<Effect> {
    lifecycle.step(now_ms, Input::Answered { number, ttl_ms })
}

/// Steps exactly when the lifecycle asks for it, up to a time; gives what happened when.
fn run_until(lifecycle: &mut Lifecycle, end_ms: u64) -> Vec<(u64, Effect)> {
    let mut happened = Vec::new();
    while let Some(next_ms) = lifecycle.next_step_ms().filter(|next_ms| *next_ms <= end_ms) {
        happened.extend(tick(lifecycle, next_ms).into_iter().map(|effect| (next_ms, effect)));
    }
    happened
}

#[test]
fn renewals_go_out_at_a_third_and_the_deadline_counts_from_the_sending() {
    let mut lifecycle = lease();
    assert_eq!(lifecycle.deadline_ms(), DEADLINE_MS);
    assert_eq!(lifecycle.next_step_ms(), Some(3_000));
    assert_eq!(tick(&mut lifecycle, 2_999), []);
    assert_eq!(tick(&mut lifecycle, 3_000), [SendRenewal { number: 1 }]);
    assert_eq!(tick(&mut lifecycle, 3_100), [], "one at a time");
    assert_eq!(answer(&mut lifecycle, 4_000, 1, TTL_MS), [Confirmed]);
    assert_eq!(lifecycle.deadline_ms(), 3_000 + DEADLINE_MS, "not from the arrival of the answer");
    assert_eq!(lifecycle.next_step_ms(), Some(6_000));
}

#[test]
fn a_server_that_falls_silent_is_asked_again_then_warned_about_then_lost() {
    let mut lifecycle = lease();
    let lost = Lost(Cause::Unconfirmed { for_ms: DEADLINE_MS });
    assert_eq!(
        run_until(&mut lifecycle, 100_000),
        [
            (3_000, SendRenewal { number: 1 }),
            (4_500, Warn),
            (4_500, SendRenewal { number: 2 }),
            (6_000, SendRenewal { number: 3 }),
            (7_500, SendRenewal { number: 4 }),
            (DEADLINE_MS, Cancel),
            (DEADLINE_MS, lost),
        ]
    );
    assert_eq!(lifecycle.next_step_ms(), None);
}

#[test]
fn lost_is_final() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    assert_eq!(tick(&mut lifecycle, DEADLINE_MS).last(), Some(&Lost(Cause::Asleep { for_ms: 5_800 })));
    for input in [
        Input::Tick,
        Input::Answered { number: 1, ttl_ms: TTL_MS },
        Input::Failed { number: 1 },
        Input::Ended(Cause::Released),
    ] {
        assert_eq!(lifecycle.step(DEADLINE_MS + 1, input), []);
    }
    assert_eq!(lifecycle.lost(), Some(Cause::Asleep { for_ms: 5_800 }), "the first cause stays");
}

#[test]
fn an_answer_that_is_read_after_the_deadline_is_too_late() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    // The answer alone would promise time up to 11,800.
    let effects = answer(&mut lifecycle, DEADLINE_MS, 1, TTL_MS);
    assert!(matches!(effects[..], [Cancel, Lost(_)]), "{effects:?}");
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    run_until(&mut lifecycle, DEADLINE_MS - 1);
    assert_eq!(answer(&mut lifecycle, DEADLINE_MS - 1, 1, TTL_MS), [Confirmed, Warn], "just in time");
}

#[test]
fn an_answer_to_an_older_renewal_counts_from_that_renewal() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    tick(&mut lifecycle, 3_000 + PATIENCE_MS);
    assert_eq!(answer(&mut lifecycle, 4_600, 1, TTL_MS), [Confirmed]);
    assert_eq!(lifecycle.deadline_ms(), 3_000 + DEADLINE_MS);
    assert_eq!(lifecycle.next_step_ms(), Some(6_000), "the second is still waited for");
    assert_eq!(answer(&mut lifecycle, 4_700, 2, TTL_MS), [Confirmed]);
    assert_eq!(lifecycle.deadline_ms(), 4_500 + DEADLINE_MS);
}

#[test]
fn an_older_answer_never_replaces_a_newer_one() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    tick(&mut lifecycle, 3_000 + PATIENCE_MS);
    assert_eq!(answer(&mut lifecycle, 4_600, 2, TTL_MS), [Confirmed]);
    assert_eq!(answer(&mut lifecycle, 4_700, 1, 90_000), []);
    assert_eq!(lifecycle.deadline_ms(), 4_500 + DEADLINE_MS);
}

#[test]
fn a_doubled_answer_changes_nothing() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    answer(&mut lifecycle, 3_100, 1, TTL_MS);
    let before = lifecycle.deadline_ms();
    assert_eq!(answer(&mut lifecycle, 3_200, 1, 90_000), []);
    assert_eq!(answer(&mut lifecycle, 3_200, 7, 90_000), [], "nor does one that nobody asked for");
    assert_eq!((lifecycle.deadline_ms(), lifecycle.next_step_ms()), (before, Some(6_000)));
}

#[test]
fn the_ttl_is_what_the_last_answer_names() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    answer(&mut lifecycle, 3_010, 1, 3_000);
    assert_eq!(lifecycle.deadline_ms(), 3_000 + 3_000 - 80, "shortened");
    assert_eq!(lifecycle.next_step_ms(), Some(4_000));
    tick(&mut lifecycle, 4_000);
    answer(&mut lifecycle, 4_010, 2, 90_000);
    assert_eq!(lifecycle.deadline_ms(), 4_000 + 90_000 - 1_820, "lengthened");
    assert_eq!(lifecycle.next_step_ms(), Some(34_000));
}

#[test]
fn a_ttl_that_is_over_when_its_answer_comes_is_a_loss() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    let effects = answer(&mut lifecycle, 4_000, 1, 1_000);
    assert!(matches!(effects[..], [Confirmed, Cancel, Lost(_)]), "{effects:?}");
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    assert_eq!(answer(&mut lifecycle, 3_010, 1, 0), [Cancel, Lost(Cause::LeaseEnded)], "0 is etcd's word for gone");
}

#[test]
fn a_jump_over_the_deadline_is_told_as_sleep() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 100);
    assert_eq!(tick(&mut lifecycle, 3_600_000), [Cancel, Lost(Cause::Asleep { for_ms: 3_599_900 })]);
    // A sleep that ends before the deadline costs nothing but a warning.
    let mut lifecycle = lease();
    assert_eq!(tick(&mut lifecycle, 8_000), [Warn, SendRenewal { number: 1 }]);
    assert_eq!(answer(&mut lifecycle, 8_100, 1, TTL_MS), [Confirmed]);
    assert!(!lifecycle.is_warned());
}

#[test]
fn a_failed_renewal_is_tried_again_with_growing_pauses_until_the_deadline() {
    let mut lifecycle = lease();
    let mut sent_ms = Vec::new();
    while let Some(next_ms) = lifecycle.next_step_ms() {
        for effect in tick(&mut lifecycle, next_ms) {
            if let SendRenewal { number } = effect {
                sent_ms.push(next_ms);
                assert_eq!(lifecycle.step(next_ms, Input::Failed { number }), []);
                assert_eq!(lifecycle.step(next_ms, Input::Failed { number }), [], "told twice, counted once");
            }
        }
    }
    assert_eq!(&sent_ms[..6], [3_000, 3_100, 3_300, 3_700, 4_450, 5_200]);
    assert!(sent_ms.iter().all(|sent_ms| *sent_ms < DEADLINE_MS));
    assert_eq!(lifecycle.lost(), Some(Cause::Unconfirmed { for_ms: DEADLINE_MS }));
}

#[test]
fn a_failure_is_forgotten_once_a_renewal_is_confirmed() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    lifecycle.step(3_000, Input::Failed { number: 1 });
    assert_eq!(tick(&mut lifecycle, 3_100), [SendRenewal { number: 2 }]);
    assert_eq!(answer(&mut lifecycle, 3_200, 1, TTL_MS), [], "what failed has no answer");
    assert_eq!(answer(&mut lifecycle, 3_200, 2, TTL_MS), [Confirmed]);
    tick(&mut lifecycle, 6_100);
    lifecycle.step(6_100, Input::Failed { number: 3 });
    assert_eq!(lifecycle.next_step_ms(), Some(6_200), "the first pause again");
}

#[test]
fn the_failure_of_an_older_renewal_does_not_disturb_the_present_one() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    assert_eq!(tick(&mut lifecycle, 4_500), [Warn, SendRenewal { number: 2 }]);
    assert_eq!(lifecycle.step(4_600, Input::Failed { number: 1 }), []);
    assert_eq!(lifecycle.next_step_ms(), Some(4_500 + PATIENCE_MS));
}

#[test]
fn work_is_cancelled_before_the_deadline_if_it_needs_time() {
    let mut lifecycle = Lifecycle::new(CancelAt::Before(Duration::from_millis(2_000)), 0, TTL_MS);
    assert_eq!(lifecycle.cancel_ms(), DEADLINE_MS - 2_000);
    let happened = run_until(&mut lifecycle, 6_800);
    assert_eq!(happened.last(), Some(&(6_800, Cancel)));
    assert!(lifecycle.is_cancelled() && lifecycle.lost().is_none());
    let happened = run_until(&mut lifecycle, 100_000);
    assert!(matches!(happened.last(), Some((DEADLINE_MS, Lost(_)))));
    assert!(!happened.iter().any(|(_, effect)| *effect == Cancel), "cancelled once: {happened:?}");
}

#[test]
fn cancelled_work_is_covered_by_renewals_but_stays_cancelled() {
    let mut lifecycle = Lifecycle::new(CancelAt::HalfTtl, 0, TTL_MS);
    tick(&mut lifecycle, 3_000);
    assert_eq!(tick(&mut lifecycle, 4_500), [Warn, Cancel, SendRenewal { number: 2 }]);
    assert_eq!(answer(&mut lifecycle, 4_600, 2, TTL_MS), [Confirmed]);
    assert!(lifecycle.is_cancelled());
    assert_eq!(lifecycle.deadline_ms(), 4_500 + DEADLINE_MS, "time to wind up in");
    assert_eq!(lifecycle.step(4_700, Input::Ended(Cause::Released)), [Lost(Cause::Released)]);
}

#[test]
fn no_time_to_end_reaches_back_before_half_of_the_ttl() {
    let lifecycle = Lifecycle::new(CancelAt::Before(Duration::from_secs(3_600)), 0, TTL_MS);
    assert_eq!(lifecycle.cancel_ms(), TTL_MS / 2);
    let mut lifecycle = Lifecycle::new(CancelAt::Before(Duration::from_millis(2_000)), 0, TTL_MS);
    tick(&mut lifecycle, 3_000);
    answer(&mut lifecycle, 3_001, 1, 1_000);
    assert_eq!(lifecycle.cancel_ms(), 3_500, "also after the server has shortened it");
}

#[test]
fn a_warning_is_given_once_and_again_after_it_was_void() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    assert_eq!(tick(&mut lifecycle, 4_500), [Warn, SendRenewal { number: 2 }]);
    assert_eq!(tick(&mut lifecycle, 5_000), []);
    assert_eq!(answer(&mut lifecycle, 5_100, 2, TTL_MS), [Confirmed]);
    assert!(!lifecycle.is_warned());
    let happened = run_until(&mut lifecycle, 9_000);
    assert_eq!(happened.iter().filter(|(_, effect)| *effect == Warn).count(), 1);
    assert!(happened.contains(&(9_000, Warn)));
}

#[test]
fn what_the_server_or_the_holder_ends_is_lost_at_once() {
    for cause in [Cause::LeaseEnded, Cause::Taken, Cause::Released] {
        assert_eq!(lease().step(10, Input::Ended(cause)), [Cancel, Lost(cause)]);
    }
}

#[test]
fn a_clock_that_seems_to_go_back_is_taken_to_stand_still() {
    let mut lifecycle = lease();
    tick(&mut lifecycle, 3_000);
    answer(&mut lifecycle, 6_500, 1, TTL_MS);
    assert_eq!(tick(&mut lifecycle, 10), []);
    assert_eq!(lifecycle.next_step_ms(), Some(7_500), "the warning; the renewal that was due went out at 6,500");
}

#[test]
fn the_shortest_and_the_longest_ttl_have_a_deadline_before_their_end() {
    for ttl_ms in [0, 1, 20, 21, 500, 1_000, 30_000, u64::MAX / 2, u64::MAX] {
        let mut lifecycle = Lifecycle::new(CancelAt::Deadline, 5, ttl_ms);
        let deadline_ms = lifecycle.deadline_ms();
        assert!(deadline_ms >= 5 && deadline_ms <= 5_u64.saturating_add(ttl_ms), "{ttl_ms}");
        assert!(ttl_ms < 21 || deadline_ms < 5_u64.saturating_add(ttl_ms), "{ttl_ms}");
        // It comes to an end, however it is stepped.
        lifecycle.step(u64::MAX, Input::Tick);
        assert!(lifecycle.lost().is_some());
    }
}

/// Whatever comes in at whatever time, the deadline is never later than the send time of some
/// confirmed renewal allows, and nothing follows a loss.
#[test]
fn random_histories_keep_the_promise() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..2_000 {
        let mut lifecycle = lease();
        let (mut now_ms, mut sent) = (0, vec![(0_u64, 0_u64)]);
        let mut promised_ms = TTL_MS;
        let mut lost = false;
        for _ in 0..60 {
            now_ms += random(900);
            let number = random(sent.len() as u64 + 1);
            let input = match random(4) {
                0 => Input::Failed { number },
                1 => {
                    let ttl_ms = 1_000 + random(12_000);
                    if let Some((_, sent_ms)) = sent.iter().find(|(sent, _)| *sent == number && number > 0) {
                        promised_ms = promised_ms.max(sent_ms + ttl_ms);
                    }
                    Input::Answered { number, ttl_ms }
                }
                _ => Input::Tick,
            };
            for effect in lifecycle.step(now_ms, input) {
                assert!(!lost, "{effect:?} after the loss");
                match effect {
                    SendRenewal { number } => sent.push((number, now_ms)),
                    Lost(_) => lost = true,
                    _ => {}
                }
            }
            assert!(lifecycle.deadline_ms() < promised_ms, "a deadline beyond what was promised");
            assert!(lost || now_ms < lifecycle.deadline_ms(), "held beyond its deadline");
        }
    }
}

#[test]
fn a_doubt_is_settled_by_a_renewal_that_was_sent_after_it() {
    let mut lifecycle = lease();
    assert_eq!(tick(&mut lifecycle, 3_000), [SendRenewal { number: 1 }]);
    assert_eq!(lifecycle.step(3_100, Input::Doubt), [Warn, SendRenewal { number: 2 }]);
    assert_eq!(answer(&mut lifecycle, 3_200, 1, TTL_MS), [], "it may have been sent long ago");
    assert!(lifecycle.is_warned());
    assert_eq!(answer(&mut lifecycle, 3_300, 2, TTL_MS), [Confirmed]);
    assert!(!lifecycle.is_warned());
    assert_eq!((lifecycle.deadline_ms(), lifecycle.cancel_ms()), (3_100 + DEADLINE_MS, 3_100 + DEADLINE_MS));
}

#[test]
fn a_doubt_that_the_server_does_not_settle_soon_cancels_the_work() {
    let mut lifecycle = lease();
    assert_eq!(lifecycle.step(1_000, Input::Doubt), [Warn, SendRenewal { number: 1 }]);
    // A second one does not put it off.
    assert_eq!(lifecycle.step(2_000, Input::Doubt), [SendRenewal { number: 2 }]);
    let cancelled = run_until(&mut lifecycle, 1_000 + PATIENCE_MS);
    assert_eq!(cancelled, [(1_000 + PATIENCE_MS, Cancel)]);
    assert_eq!(lifecycle.deadline_ms(), DEADLINE_MS, "what the server confirmed is not taken back");
    assert_eq!(lifecycle.step(2_600, Input::Answered { number: 2, ttl_ms: 0 }), [Lost(Cause::LeaseEnded)]);
}

#[test]
fn only_a_jump_ahead_of_the_wall_clock_is_one() {
    let margin_ms = margin_ms(TTL_MS);
    let mut wall = WallClock::new(1_000, 50_000);
    assert!(!wall.has_jumped(2_000, 51_000, TTL_MS));
    assert!(!wall.has_jumped(3_000, 52_000 + margin_ms, TTL_MS), "clocks drift");
    assert!(!wall.has_jumped(4_000, 53_000 + 2 * margin_ms, TTL_MS), "again");
    assert!(wall.has_jumped(5_000, 54_001 + 3 * margin_ms, TTL_MS));
    assert!(!wall.has_jumped(6_000, 55_001 + 3 * margin_ms, TTL_MS), "it is told once");
    assert!(!wall.has_jumped(7_000, 1_000, TTL_MS), "set back, it tells nothing of lost time");
    assert!(!wall.has_jumped(8_000, 2_000, TTL_MS));
    assert!(wall.has_jumped(8_000, u64::MAX, TTL_MS));
}
