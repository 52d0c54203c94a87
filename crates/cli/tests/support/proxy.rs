//! A way to the server that can be cut: then connections stay open and nothing passes any more,
//! which is what a partition looks like.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

pub struct Proxy {
    pub address: String,
    /// Connections below this number are dead.
    dead_below: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
}

impl Proxy {
    pub fn start(target: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (dead_below, connections) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (dead, counter, target) = (dead_below.clone(), connections.clone(), target.to_owned());
        thread::spawn(move || {
            for inward in listener.incoming().map_while(Result::ok) {
                let Ok(outward) = TcpStream::connect(&target) else { continue };
                let number = counter.fetch_add(1, Ordering::SeqCst);
                for (from, to) in [(&inward, &outward), (&outward, &inward)] {
                    let (from, to, dead) = (from.try_clone().unwrap(), to.try_clone().unwrap(), dead.clone());
                    thread::spawn(move || pass(from, to, || number < dead.load(Ordering::SeqCst)));
                }
            }
        });
        Proxy { address, dead_below, connections }
    }

    /// Those that are; new ones pass. As if something on the way had forgotten them.
    pub fn cut_present(&self) {
        self.dead_below.store(self.connections.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// For ever, for connections that are and that come.
    pub fn cut(&self) {
        self.dead_below.store(u64::MAX, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_cut: impl Fn() -> bool) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if !is_cut() && to.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
    if !is_cut() {
        let _ = to.shutdown(std::net::Shutdown::Write);
    }
}
