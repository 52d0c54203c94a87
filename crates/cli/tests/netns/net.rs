//! Networks of this test's own: a namespace for each machine, and one with the switch between them.
//!
//! Nothing of the host's network is touched. Every name begins with [`PREFIX`] and this process's id, so that what a
//! killed run has left behind is known as such, and is taken away by the next one.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub const PREFIX: &str = "tenure-netns-";

/// What happens to packets from one port of the switch to another.
#[derive(Debug, Clone)]
pub struct Rule {
    from: String,
    to: String,
    lost_percent: u32,
}

impl Rule {
    /// Nothing passes in this direction.
    pub fn one_way(from: &str, to: &str) -> Rule {
        Rule::lossy(from, to, 100)
    }

    /// Nothing passes between two sides.
    pub fn cut(one_side: &[&str], other_side: &[&str]) -> Vec<Rule> {
        let pairs = one_side.iter().flat_map(|one| other_side.iter().map(move |other| (*one, *other)));
        pairs.flat_map(|(one, other)| [Rule::one_way(one, other), Rule::one_way(other, one)]).collect()
    }

    pub fn lossy(from: &str, to: &str, lost_percent: u32) -> Rule {
        Rule { from: from.to_owned(), to: to.to_owned(), lost_percent }
    }

    fn text(&self) -> String {
        let Rule { from, to, lost_percent } = self;
        let chance =
            if *lost_percent < 100 { format!("numgen random mod 100 < {lost_percent} ") } else { String::new() };
        format!("iifname \"{from}\" oifname \"{to}\" {chance}counter drop\n")
    }
}

pub struct Network {
    prefix: String,
    ports: Vec<String>,
}

impl Network {
    pub fn new() -> Network {
        static LEFTOVERS: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        LEFTOVERS.call_once(remove_leftovers);
        let prefix = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let network = Network { prefix, ports: Vec::new() };
        let switch = network.switch();
        run(&["ip", "netns", "add", &switch]);
        run(&["ip", "-n", &switch, "link", "add", "switch", "type", "bridge"]);
        run(&["ip", "-n", &switch, "link", "set", "switch", "up"]);
        network
    }

    /// Adds a machine; gives its address.
    pub fn attach(&mut self, port: &str) -> String {
        let (switch, namespace) = (self.switch(), self.namespace(port));
        self.ports.push(port.to_owned());
        let address = format!("10.0.0.{}", self.ports.len());
        run(&["ip", "netns", "add", &namespace]);
        run(&["ip", "-n", &switch, "link", "add", port, "type", "veth", "peer", "name", "wire", "netns", &namespace]);
        run(&["ip", "-n", &switch, "link", "set", port, "master", "switch", "up"]);
        run(&["ip", "-n", &namespace, "address", "add", &format!("{address}/24"), "dev", "wire"]);
        run(&["ip", "-n", &namespace, "link", "set", "wire", "up"]);
        run(&["ip", "-n", &namespace, "link", "set", "lo", "up"]);
        address
    }

    pub fn namespace(&self, port: &str) -> String {
        format!("{}-{port}", self.prefix)
    }

    fn switch(&self) -> String {
        self.namespace("switch")
    }

    /// Replaces all rules at once.
    pub fn set(&self, rules: &[Rule]) {
        let rules: String = rules.iter().map(Rule::text).collect();
        let chain = format!("chain wires {{ type filter hook forward priority 0; policy accept;\n{rules}}}");
        let script = format!("flush ruleset\ntable bridge switch {{\n{chain}\n}}\n");
        run_reading(&["ip", "netns", "exec", &self.switch(), "nft", "-f", "-"], &script);
    }

    /// How many packets the present rules have taken away.
    pub fn lost_packets(&self) -> u64 {
        let listed = command(&["ip", "netns", "exec", &self.switch(), "nft", "list", "ruleset"]).output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let counts = listed.lines().filter_map(|line| line.split_once("counter packets ")?.1.split(' ').next());
        counts.map(|count| count.parse::<u64>().expect("a number of packets")).sum()
    }

    /// Delays all that goes to this machine: by 40 to 80 ms, or, where the kernel has no netem, by a line so narrow
    /// that packets queue up before it.
    pub fn slow_down(&self, port: &str) {
        let switch = self.switch();
        let delay = ["netem", "delay", "60ms", "20ms"];
        let narrow = ["tbf", "rate", "500kbit", "burst", "1600", "limit", "20000"];
        let queue = |discipline: &[&str]| {
            let add = ["ip", "netns", "exec", &switch, "tc", "qdisc", "add", "dev", port, "root"];
            command(&[&add, discipline].concat()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        assert!(queue(&delay) || queue(&narrow), "neither netem nor tbf: see `tc qdisc`");
    }

    /// Whether [`Network::slow_down`] has met packets.
    pub fn has_slowed_down(&self, port: &str) -> bool {
        let shown =
            command(&["ip", "netns", "exec", &self.switch(), "tc", "-s", "qdisc", "show", "dev", port]).output();
        let shown = String::from_utf8_lossy(&shown.unwrap().stdout).into_owned();
        let counted = shown.split_once("overlimits ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
        shown.contains("netem") || counted.is_some_and(|packets| packets > 0)
    }

    /// Ends [`Network::slow_down`].
    pub fn speed_up(&self, port: &str) {
        run(&["ip", "netns", "exec", &self.switch(), "tc", "qdisc", "del", "dev", port, "root"]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for port in self.ports.iter().map(String::as_str).chain(["switch"]) {
            remove_namespace(&self.namespace(port));
        }
    }
}

/// Work on a thread of its own within a namespace, where all its sockets, and the threads it starts, are.
pub fn within<Output: Send + 'static>(
    namespace: &str,
    work: impl AsyncFnOnce() -> Output + Send + 'static,
) -> thread::JoinHandle<Output> {
    let path = Path::new("/run/netns").join(namespace);
    thread::spawn(move || {
        let namespace = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may move there");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work())
    })
}

/// Why these tests cannot run here; None: they can.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("they need root".to_owned());
    }
    let tools = [("ip", "iproute2", "-V"), ("tc", "iproute2", "-V"), ("nft", "nftables", "--version")];
    for (tool, package, flag) in tools {
        if !command(&[tool, flag]).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|it| it.success()) {
            return Some(format!("they need {tool} (of the package {package})"));
        }
    }
    let trial = format!("{PREFIX}{}-trial", std::process::id());
    let made = command(&["ip", "netns", "add", &trial]).output();
    remove_namespace(&trial);
    match made {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("no namespaces here: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Some(format!("no namespaces here: {error}")),
    }
}

fn remove_namespace(namespace: &str) {
    if let Ok(output) = command(&["ip", "netns", "pids", namespace]).stderr(Stdio::null()).output() {
        let ids = String::from_utf8_lossy(&output.stdout).into_owned();
        for id in ids.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)) {
            // A thread of this very process may still be on its way out.
            if id != rustix::process::getpid() {
                let _ = kill_process(id, Signal::KILL);
            }
        }
    }
    let _ = command(&["ip", "netns", "del", namespace]).stderr(Stdio::null()).status();
}

/// What runs that were killed have left: their namespaces with all that runs there, mounts and directories.
fn remove_leftovers() {
    let listed = command(&["ip", "netns", "list"]).output().expect("ip is there");
    for namespace in String::from_utf8_lossy(&listed.stdout).lines().filter_map(|line| line.split(' ').next()) {
        if is_leftover(namespace) {
            remove_namespace(namespace);
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for place in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        if Path::new(place).components().any(|part| is_leftover(&part.as_os_str().to_string_lossy())) {
            let _ = command(&["umount", "--lazy", place]).status();
        }
    }
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if is_leftover(&entry.file_name().to_string_lossy()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Named by a process like this one that is no more.
fn is_leftover(name: &str) -> bool {
    let id = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()).and_then(|id| id.parse::<u32>().ok());
    id.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists())
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command
}

#[track_caller]
pub fn run(words: &[&str]) {
    run_reading(words, "");
}

#[track_caller]
fn run_reading(words: &[&str], input: &str) {
    let mut command = command(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", words[0]));
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}\n{input}", words.join(" "));
}
