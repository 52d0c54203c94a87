//! Members that do not reach each other, or not all of them, or only in one direction.

use std::thread;

use super::{LONG, SHORT, Scene};
use crate::cluster::MEMBERS;
use crate::net::Rule;

#[test]
#[ignore = "needs root and network namespaces"]
fn a_follower_is_cut_off() {
    let Some(scene) = Scene::begin() else { return };
    let (leader, [other, cut_off]) = scene.cluster.roles();
    scene.suffer(&Rule::cut(&[cut_off], &[leader, other]));
    scene.cluster.until_leaderless(cut_off);
    scene.goes_on_for(LONG);
    scene.end();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_leader_is_cut_off() {
    let Some(scene) = Scene::begin() else { return };
    let (leader, others) = scene.cluster.roles();
    scene.suffer(&Rule::cut(&[leader], &others));
    scene.cluster.until_led_by(&others);
    scene.goes_on_for(LONG);
    scene.end();
}

/// Those clients can ask nobody but a leader that is none any more.
#[test]
#[ignore = "needs root and network namespaces"]
fn the_leader_is_cut_off_with_half_of_the_clients() {
    let Some(scene) = Scene::begin() else { return };
    let (leader, [one, other]) = scene.cluster.roles();
    scene.suffer(&Rule::cut(&[leader, "east"], &[one, other, "west"]));
    scene.cluster.until_led_by(&[one, other]);
    scene.goes_on_for(LONG);
    scene.end();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn nobody_reaches_a_majority() {
    let Some(scene) = Scene::begin() else { return };
    let [first, second, third] = MEMBERS;
    scene.suffer(&[Rule::cut(&[first], &[second, third]), Rule::cut(&[second], &[third])].concat());
    MEMBERS.iter().for_each(|member| scene.cluster.until_leaderless(member));
    thread::sleep(LONG);
    scene.end();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_leader_is_heard_and_does_not_hear() {
    let Some(scene) = Scene::begin() else { return };
    let (leader, others) = scene.cluster.roles();
    scene.suffer(&others.map(|other| Rule::one_way(other, leader)));
    scene.cluster.until_led_by(&others);
    scene.goes_on_for(LONG);
    scene.end();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_leader_hears_and_is_not_heard() {
    let Some(scene) = Scene::begin() else { return };
    let (leader, others) = scene.cluster.roles();
    scene.suffer(&others.map(|other| Rule::one_way(leader, other)));
    scene.cluster.until_led_by(&others);
    scene.goes_on_for(LONG);
    scene.end();
}

/// The leader and one follower see only the third.
#[test]
#[ignore = "needs root and network namespaces"]
fn two_see_each_other_only_through_the_third() {
    let Some(scene) = Scene::begin() else { return };
    let (leader, [other, _middle]) = scene.cluster.roles();
    scene.suffer(&Rule::cut(&[leader], &[other]));
    scene.cluster.until_leaderless(other);
    scene.goes_on_for(LONG);
    scene.end();
}

/// Cuts that come and go faster than elections.
#[test]
#[ignore = "needs root and network namespaces"]
fn the_network_flaps() {
    let Some(scene) = Scene::begin() else { return };
    for turn in 0..6 {
        let (one, other) = (MEMBERS[turn % 3], MEMBERS[(turn + 1) % 3]);
        scene.suffer(&Rule::cut(&[one], &[other, "west"]));
        thread::sleep(SHORT);
        scene.cluster.heal();
        thread::sleep(SHORT / 4);
    }
    scene.end();
}
