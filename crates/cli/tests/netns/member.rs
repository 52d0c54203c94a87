//! One member as a process in a namespace.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::net::run;
use crate::support::until;

pub struct Member {
    pub name: String,
    /// Of clients.
    pub address: String,
    pub namespace: String,
    pub data: PathBuf,
    flags: Vec<String>,
    child: Option<Child>,
    said: Arc<Mutex<String>>,
    /// Its data directory is a filesystem of its own.
    is_mounted: bool,
}

impl Member {
    pub fn new(name: &str, host: &str, namespace: String, data: PathBuf, cluster: &str) -> Member {
        let (address, peer) = (format!("{host}:2379"), format!("{host}:2380"));
        let flags = ["--name", name, "--listen", &address, "--peer-listen", &peer, "--cluster", cluster, "--insecure"];
        let flags = flags.map(str::to_owned).to_vec();
        let (name, said) = (name.to_owned(), Arc::default());
        Member { name, address, namespace, data, flags, child: None, said, is_mounted: false }
    }

    /// Gives it a disk of so many bytes, or changes what it has.
    pub fn set_disk_bytes(&mut self, bytes: u64) {
        let place = self.data.to_str().unwrap();
        std::fs::create_dir_all(place).unwrap();
        let again = if self.is_mounted { "remount," } else { "" };
        run(&["mount", "-t", "tmpfs", "-o", &format!("{again}size={bytes},mode=0700"), "tmpfs", place]);
        self.is_mounted = true;
    }

    pub fn start(&mut self) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, env!("CARGO_BIN_EXE_tenure"), "serve", "--data-dir"]);
        command.arg(&self.data).args(&self.flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TENURE_")) {
            command.env_remove(name);
        }
        let mut child = command.spawn().unwrap();
        let (pipe, said) = (child.stderr.take().unwrap(), self.said.clone());
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                said.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        self.child = Some(child);
    }

    /// `ip` becomes what it starts, so this reaches the member itself.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().expect("it runs")), signal).unwrap();
    }

    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.take().expect("it runs").wait().unwrap();
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.ended(), Some(0), "{}", self.said());
    }

    /// Waits for it to end by itself; gives its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        let mut code = None;
        until("the member ends", || {
            code = child.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code()
    }

    /// All that it logged, over restarts.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.is_mounted {
            run(&["umount", "--lazy", self.data.to_str().unwrap()]);
        }
        if thread::panicking() {
            eprintln!("---- {} said:\n{}", self.name, self.said());
        }
    }
}
