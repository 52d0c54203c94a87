//! A way to the server that can be cut: then connections stay open and nothing passes any more,
//! which is what a partition looks like.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

pub struct Proxy {
    pub address: String,
    is_cut: Arc<AtomicBool>,
}

impl Proxy {
    pub fn start(target: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let is_cut = Arc::new(AtomicBool::new(false));
        let (cut, target) = (is_cut.clone(), target.to_owned());
        thread::spawn(move || {
            for inward in listener.incoming().map_while(Result::ok) {
                let Ok(outward) = TcpStream::connect(&target) else { continue };
                for (from, to) in [(&inward, &outward), (&outward, &inward)] {
                    let (from, to, cut) = (from.try_clone().unwrap(), to.try_clone().unwrap(), cut.clone());
                    thread::spawn(move || pass(from, to, &cut));
                }
            }
        });
        Proxy { address, is_cut }
    }

    /// For ever, for connections that are and that come.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if !is_cut.load(Ordering::SeqCst) && to.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
    if !is_cut.load(Ordering::SeqCst) {
        let _ = to.shutdown(std::net::Shutdown::Write);
    }
}
