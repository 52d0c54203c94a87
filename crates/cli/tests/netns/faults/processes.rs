//! Members that are killed, stopped for a while, or restarted one after the other.

use std::thread;

use rustix::process::Signal;

use super::{LONG, SHORT, Scene};
use crate::cluster::MEMBERS;

#[test]
#[ignore = "needs root and network namespaces"]
fn leaders_are_killed() {
    let Some(mut scene) = Scene::begin() else { return };
    for _ in 0..3 {
        let (leader, _) = scene.cluster.roles();
        scene.cluster.member(leader).kill();
        scene.goes_on_for(SHORT);
        scene.cluster.member(leader).start();
        scene.cluster.until_ready();
        scene.goes_on_for(SHORT);
    }
    scene.end();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn all_are_killed_at_once() {
    let Some(mut scene) = Scene::begin() else { return };
    scene.cluster.members.iter_mut().for_each(|member| member.kill());
    scene.cluster.members.iter_mut().for_each(|member| member.start());
    scene.cluster.until_ready();
    scene.end();
}

/// It wakes up and still believes that it leads.
#[test]
#[ignore = "needs root and network namespaces"]
fn the_leader_is_stopped_for_longer_than_leases_last() {
    let Some(mut scene) = Scene::begin() else { return };
    let (leader, _) = scene.cluster.roles();
    scene.cluster.member(leader).signal(Signal::STOP);
    scene.goes_on_for(LONG);
    scene.cluster.member(leader).signal(Signal::CONT);
    scene.end();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn all_are_stopped_in_turn() {
    let Some(mut scene) = Scene::begin() else { return };
    for turn in 0..6 {
        let member = MEMBERS[turn % 3];
        scene.cluster.member(member).signal(Signal::STOP);
        thread::sleep(SHORT);
        scene.cluster.member(member).signal(Signal::CONT);
        thread::sleep(SHORT / 4);
    }
    scene.end();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn all_are_restarted_one_after_the_other() {
    let Some(mut scene) = Scene::begin() else { return };
    for member in MEMBERS {
        scene.cluster.member(member).terminate();
        scene.cluster.member(member).start();
        scene.cluster.until_ready();
        scene.goes_on_for(SHORT / 2);
    }
    scene.end();
}
