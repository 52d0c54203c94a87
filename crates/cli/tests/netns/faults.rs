//! One test for each fault: all is well, then it is not, then it is healed, and nobody can tell but by the time it took.

mod disk;
mod mixture;
mod partitions;
mod processes;
mod wires;

use std::io::Write;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use crate::checks;
use crate::cluster::Cluster;
use crate::net::{self, Rule};
use crate::support::until;
use crate::workload::Workload;

/// Long enough for a leader to be given up, another to be elected, and leases to end.
const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_secs(1);

/// Three members, and clients at work.
struct Scene {
    cluster: Cluster,
    workload: Workload,
}

impl Scene {
    /// None: it cannot be set up on this machine, which is said where it is seen.
    fn begin() -> Option<Scene> {
        can_run().then(|| Scene::with(Cluster::start()))
    }

    fn with(cluster: Cluster) -> Scene {
        let workload = Workload::start(&cluster);
        Scene { cluster, workload }
    }

    /// Rules for packets, which have to meet some.
    fn suffer(&self, rules: &[Rule]) {
        self.cluster.set(rules);
        until("the rules meet packets", || self.cluster.network.lost_packets() > 0);
    }

    /// The fault lasts, and meanwhile whoever reaches a majority gets on.
    fn goes_on_for(&self, time: Duration) {
        thread::sleep(time);
        self.workload.until_acknowledged(20);
        self.workload.until_granted(3);
    }

    /// All is healed: everything goes on, everybody agrees, and nothing that was promised is broken.
    fn end(self) {
        self.cluster.heal();
        self.cluster.until_writable();
        self.workload.until_acknowledged(50);
        self.workload.until_granted(5);
        let history = self.workload.end(&self.cluster);
        checks::check(&history, &self.cluster.aftermath());
    }
}

fn can_run() -> bool {
    static MISSING: LazyLock<Option<String>> = LazyLock::new(net::missing);
    let Some(missing) = &*MISSING else { return true };
    // Not through the macros: what they say is not shown when a test passes.
    let _ = writeln!(std::io::stderr(), "SKIPPED, NOT PASSED: tests in network namespaces cannot run here: {missing}");
    false
}
