//! Wires that lose packets, and wires that are slow.

use super::{LONG, Scene};
use crate::cluster::{MEMBERS, SIDES};
use crate::net::Rule;
use crate::support::until;

#[test]
#[ignore = "needs root and network namespaces"]
fn packets_are_lost_everywhere() {
    let Some(scene) = Scene::begin() else { return };
    let everybody: Vec<&str> = MEMBERS.into_iter().chain(SIDES).collect();
    let pairs = everybody.iter().flat_map(|from| everybody.iter().map(move |to| (*from, *to)));
    let rules: Vec<Rule> = pairs.filter(|(from, to)| from != to).map(|(from, to)| Rule::lossy(from, to, 10)).collect();
    scene.suffer(&rules);
    scene.goes_on_for(LONG);
    scene.end();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn the_leader_is_slow_to_reach() {
    let Some(scene) = Scene::begin() else { return };
    let (leader, _) = scene.cluster.roles();
    slowly(&scene, &[leader]);
    scene.end();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn everybody_is_slow_to_reach() {
    let Some(scene) = Scene::begin() else { return };
    slowly(&scene, &MEMBERS);
    scene.end();
}

fn slowly(scene: &Scene, members: &[&str]) {
    let network = &scene.cluster.network;
    members.iter().for_each(|member| network.slow_down(member));
    until("packets are held back", || members.iter().any(|member| network.has_slowed_down(member)));
    scene.goes_on_for(LONG);
    members.iter().for_each(|member| network.speed_up(member));
}
