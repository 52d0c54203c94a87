//! A damaged data directory and a full disk, met by the real process: a clear message, nothing lost.

mod support;

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{Server, own_address};
use tenure_api::etcdserverpb::kv_client::KvClient;
use tenure_api::etcdserverpb::{PutRequest, RangeRequest};
use tonic::transport::{Channel, Endpoint};

async fn put(client: &mut KvClient<Channel>, key: String, value: Vec<u8>) -> Result<(), tonic::Status> {
    let request = PutRequest { key: key.into(), value: value.into(), ..Default::default() };
    client.put(request).await.map(drop)
}

async fn has(client: &mut KvClient<Channel>, key: String) -> bool {
    let request = RangeRequest { key: key.into(), keys_only: true, ..Default::default() };
    client.range(request).await.expect("a read").into_inner().kvs.len() == 1
}

/// A directory with some keys in its log, left by a process that was killed.
async fn killed_with_keys(directory: &Path, keys: usize) {
    let mut server = Server::start_in(directory);
    let mut client = KvClient::new(server.channel().await);
    for key in 0..keys {
        put(&mut client, format!("key/{key}"), vec![b'v'; 100]).await.expect("acknowledged");
    }
    server.kill();
}

/// The newest log segment, and how much of it is written.
fn log(directory: &Path) -> (PathBuf, u64) {
    let mut written: Vec<(PathBuf, u64)> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-")))
        .filter_map(|path| {
            let bytes = fs::read(&path).unwrap();
            bytes.iter().rposition(|byte| *byte != 0).map(|last| (path, last as u64 + 1))
        })
        .collect();
    written.sort();
    written.pop().expect("a log is there")
}

fn change_byte(file: &Path, offset: u64) {
    let mut file = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.write_all(&[byte[0] ^ 1]).unwrap();
}

#[tokio::test]
async fn a_flipped_bit_in_the_middle_stops_the_start_with_file_and_offset() {
    let directory = tempfile::tempdir().unwrap();
    killed_with_keys(directory.path(), 40).await;
    let (file, written) = log(directory.path());
    // A value, not the zeroes that fill up a sector behind a batch.
    let bytes = fs::read(&file).unwrap();
    let middle = (written / 2) as usize;
    let value = bytes[middle..].windows(8).position(|window| window == b"vvvvvvvv").expect("a value");
    change_byte(&file, (middle + value) as u64);
    let mut server = Server::spawn(directory.path(), own_address(), &[]);
    assert_eq!(server.wait(), Some(1));
    let said = server.stderr();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(said.contains(name) && said.contains("corrupt at byte"), "{said}");
}

#[tokio::test]
async fn a_torn_last_write_costs_nothing_that_came_before() {
    let directory = tempfile::tempdir().unwrap();
    killed_with_keys(directory.path(), 40).await;
    let (file, written) = log(directory.path());
    change_byte(&file, written - 1);
    let server = Server::start_in(directory.path());
    let mut client = KvClient::new(server.channel().await);
    for key in 0..39 {
        assert!(has(&mut client, format!("key/{key}")).await, "key/{key} is gone");
    }
    assert!(server.stderr().contains("cut off an unfinished write"), "{}", server.stderr());
}

/// Bytes that no compression makes smaller, so that a snapshot finds no room either.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Waits until somebody serves there.
async fn connect(address: &str) -> Channel {
    let began = Instant::now();
    loop {
        match Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await {
            Ok(channel) => return channel,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "nobody serves: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Ends with the test, however that ends.
struct Ended(Child, PathBuf);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = fs::remove_file(&self.1);
    }
}

/// In a mount namespace of its own, on a small filesystem: the member fills it, stops with a message,
/// and is started again once there is room.
#[tokio::test]
async fn a_full_disk_stops_the_member_and_loses_nothing() {
    let may_mount = Command::new("unshare").args(["-m", "-p", "--fork", "true"]).stderr(Stdio::null()).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        eprintln!("not run: mount namespaces are not allowed here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let address = own_address();
    let script = r#"
        set -e
        mount -t tmpfs -o size=220m none "$DIRECTORY"
        dd if=/dev/zero of="$DIRECTORY/ballast" bs=1M count=60 2>/dev/null
        serve() { "$TENURE" serve --data-dir "$DIRECTORY/data" --listen "$ADDRESS" --peer-listen 127.0.0.1:0; }
        set +e
        serve
        echo "ended with $?" >&2
        rm "$DIRECTORY/ballast"
        serve
    "#;
    let said = directory.path().with_extension("said");
    let child = Command::new("unshare")
        // With a process namespace of its own nothing outlives it.
        .args(["-m", "-p", "--fork", "--kill-child", "sh", "-c", script])
        .env("DIRECTORY", directory.path())
        .env("ADDRESS", &address)
        .env("TENURE", env!("CARGO_BIN_EXE_tenure"))
        .stdout(Stdio::null())
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let _ended = Ended(child, said.clone());
    let mut client = KvClient::new(connect(&address).await);
    let mut acknowledged = 0;
    while acknowledged < 400
        && put(&mut client, format!("big/{acknowledged}"), noise(acknowledged, 1 << 20)).await.is_ok()
    {
        acknowledged += 1;
    }
    assert!((20..400).contains(&acknowledged), "{acknowledged} puts of 1 MiB went into 160 MiB");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut client = KvClient::new(connect(&address).await);
    for key in 0..acknowledged {
        assert!(has(&mut client, format!("big/{key}")).await, "big/{key} was acknowledged and is gone");
    }
    put(&mut client, "after".into(), b"room again".to_vec()).await.expect("there is room again");
    let said = fs::read_to_string(&said).unwrap();
    assert!(said.contains("disk full"), "{said}");
    assert!(said.contains("ended with 1"), "{said}");
}
