//! What a storage that fences reads: signed tokens, and the file in which it keeps what it has seen.

use std::path::Path;

use tenure_fence::{Claim, DurableFence, Equal, Key, Keyring, SigningKey, Token};
use tenure_storage::MemoryDisk;

const DIRECTORY: &str = "fence";

/// The first byte says whether the rest is a signed token or damage to the file, and then where.
pub fn run(bytes: &[u8]) {
    match bytes {
        [0, text @ ..] => {
            if let Ok(text) = std::str::from_utf8(text)
                && let Ok(claim) = keyring().open(text)
            {
                assert_eq!(keyring().sign(&claim), text, "a claim has one form");
            }
        }
        [_, file, high, low, damage @ ..] => reopen(*file, u16::from_be_bytes([*high, *low]), damage),
        _ => {}
    }
}

fn reopen(file: u8, at: u16, damage: &[u8]) {
    let disk = written();
    let files = disk.files();
    let file = &files[usize::from(file) % files.len()];
    let mut contents = disk.contents(file).unwrap_or_default();
    let at = usize::from(at).min(contents.len());
    contents.resize(contents.len().max(at + damage.len()), 0);
    contents[at..at + damage.len()].copy_from_slice(damage);
    disk.set_contents(file, Some(contents));
    let _ = DurableFence::open_on(disk, Path::new(DIRECTORY), Equal::Allow);
}

fn written() -> MemoryDisk {
    let disk = MemoryDisk::new(1);
    let mut fence = DurableFence::open_on(disk.clone(), Path::new(DIRECTORY), Equal::Allow).expect("it is new");
    for token in 1..5 {
        fence.admit(&key(), Token::new(token).expect("a token"), None).expect("they rise");
    }
    disk
}

fn key() -> Key {
    Key::name("deploy/prod").expect("a key")
}

fn keyring() -> Keyring {
    Keyring::new(vec![SigningKey::new(&[7; 32]).expect("long enough")]).expect("one key")
}

pub fn seeds() -> Vec<Vec<u8>> {
    let claim =
        Claim::new("cluster", key(), Token::new(4).expect("a token"), "ada", 1_700_000_000_000).expect("a claim");
    let signed = keyring().sign(&claim);
    vec![[&[0], signed.as_bytes()].concat(), vec![1, 0, 0, 8, 1], vec![1, 0, 0, 40, 0, 0]]
}
