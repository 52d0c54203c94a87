//! One fault after the other, at random, some on top of others.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Scene, can_run};
use crate::cluster::{Cluster, MEMBERS, SIDES};
use crate::net::Rule;
use crate::workload::Dice;

/// How long it goes on, in seconds: for a night, say so in this variable.
const SECONDS: (&str, u64) = ("TENURE_NETNS_SECONDS", 15);

#[test]
#[ignore = "needs root and network namespaces"]
fn faults_come_at_random() {
    if !can_run() {
        return;
    }
    let seconds = std::env::var(SECONDS.0).map_or(SECONDS.1, |text| text.parse().expect("a number of seconds"));
    let until = Instant::now() + Duration::from_secs(seconds);
    // A scene is checked as a whole, so it does not last for ever.
    while Instant::now() < until {
        let mut scene = Scene::with(Cluster::start());
        let mut dice = Dice::from_clock();
        for _ in 0..10 {
            step(&mut scene, &mut dice);
        }
        scene.end();
    }
}

fn step(scene: &mut Scene, dice: &mut Dice) {
    let time = Duration::from_millis(200 + dice.below(2_000));
    let place = dice.below(3) as usize;
    let [one, other, third] = [0, 1, 2].map(|offset| MEMBERS[(place + offset) % 3]);
    let side = SIDES[dice.below(2) as usize];
    let rules = match dice.below(8) {
        0 => Rule::cut(&[one], &[other, third]),
        1 => Rule::cut(&[one, side], &[other, third]),
        2 => Rule::cut(&[one], &[other]),
        3 => vec![Rule::one_way(one, other), Rule::one_way(one, third)],
        4 => vec![Rule::one_way(other, one), Rule::one_way(third, one)],
        5 => Rule::cut(&[one], &SIDES),
        6 => [one, other, third].map(|from| Rule::lossy(from, side, 30)).into(),
        _ => Vec::new(),
    };
    eprintln!("{rules:?} for {time:?}");
    scene.cluster.set(&rules);
    let member = scene.cluster.member(MEMBERS[dice.below(3) as usize]);
    match dice.below(4) {
        0 => {
            eprintln!("{} is killed", member.name);
            member.kill();
            thread::sleep(time);
            member.start();
        }
        1 => {
            eprintln!("{} is stopped", member.name);
            member.signal(Signal::STOP);
            thread::sleep(time);
            member.signal(Signal::CONT);
        }
        _ => thread::sleep(time),
    }
}
