//! The rules of the rooms, checked: who may know whom, and what must not be in the pure ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every room with the rooms that it may know. A new edge is a decision: make it here, and in docs/architecture.md.
const EDGES: &[(&str, &[&str])] = &[
    ("machine", &[]),
    ("storage", &[]),
    ("api", &[]),
    ("replica", &["machine"]),
    ("client", &["api"]),
    ("fence", &["storage"]),
    ("bench", &["api"]),
    ("server", &["api", "fence", "machine", "replica", "storage"]),
    ("sim", &["client", "machine", "replica", "storage"]),
    ("fuzz", &["api", "fence", "machine", "replica", "server", "storage"]),
    ("cli", &["api", "bench", "client", "fence", "machine", "server", "storage"]),
];

/// What a pure room has no use for, as it would stand in its source.
const IMPURE: &[&str] = &[
    "Instant::now",
    "SystemTime::now",
    "thread_rng",
    "std::fs",
    "std::net",
    "std::thread",
    "std::env",
    "tokio",
    "async fn",
    "HashMap",
    "HashSet",
    "println!",
    "tracing::",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/cli is two below the root").to_path_buf()
}

fn rooms() -> BTreeMap<String, PathBuf> {
    let mut rooms: BTreeMap<String, PathBuf> = fs::read_dir(root().join("crates"))
        .expect("crates/ is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.join("Cargo.toml").exists())
        .map(|path| (path.file_name().expect("named").to_string_lossy().into_owned(), path))
        .collect();
    rooms.insert("bench".into(), root().join("bench"));
    rooms.insert("fuzz".into(), root().join("fuzz"));
    rooms
}

/// The names of tenure crates in one section of a manifest.
fn known(manifest: &str, section: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut known = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim() == format!("[{section}]");
        } else if inside && let Some(rest) = line.strip_prefix("tenure-") {
            let end = rest.find(['.', ' ', '=']).unwrap_or(rest.len());
            known.insert(rest[..end].to_string());
        }
    }
    known
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_room_knows_only_whom_it_may() {
    let allowed: BTreeMap<&str, BTreeSet<String>> =
        EDGES.iter().map(|(room, edges)| (*room, edges.iter().map(|edge| edge.to_string()).collect())).collect();
    for (room, path) in rooms() {
        let manifest = fs::read_to_string(path.join("Cargo.toml")).expect("readable");
        let Some(allowed) = allowed.get(room.as_str()) else { panic!("{room} has no line in EDGES") };
        for edge in known(&manifest, "dependencies") {
            assert!(allowed.contains(&edge), "{room} must not depend on {edge}");
        }
        assert!(manifest.contains(&format!("name = \"tenure-{room}\"")), "{room}: folder and crate differ in name");
    }
}

#[test]
fn every_crate_forbids_unsafe_code() {
    for (room, path) in rooms() {
        let entry = ["src/lib.rs", "src/main.rs"].map(|file| path.join(file)).into_iter().find(|file| file.exists());
        let source = fs::read_to_string(entry.expect("a crate has an entry")).expect("readable");
        assert!(source.contains("#![forbid(unsafe_code)]"), "{room} does not forbid unsafe code");
    }
}

#[test]
fn pure_rooms_stay_pure() {
    for room in ["machine", "replica"] {
        let path = &rooms()[room];
        let clippy = fs::read_to_string(path.join("clippy.toml")).expect("a pure room bans what is impure");
        assert!(clippy.contains("std::time::Instant") && clippy.contains("std::collections::HashMap"));
        let mut files = Vec::new();
        sources(&path.join("src"), &mut files);
        assert!(!files.is_empty());
        files.iter().for_each(|file| assert_pure(file));
    }
}

/// The parts of the client that decide something. The client around them is not pure, but the simulation runs these.
#[test]
fn what_the_client_decides_is_decided_purely() {
    for file in ["cursor.rs", "lifecycle.rs", "requests.rs", "retry.rs"] {
        assert_pure(&rooms()["client"].join("src").join(file));
    }
}

fn assert_pure(file: &Path) {
    let source = fs::read_to_string(file).expect("readable");
    for (number, line) in source.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        for banned in IMPURE {
            assert!(!line.contains(banned), "{}:{}: {banned}", file.display(), number + 1);
        }
    }
}

/// These panic where the reader is gone, and a panic ends a server. `tracing` logs, `output::note` tells.
const PRINTING: &[&str] = &["eprintln!", "println!", "eprint!", "print!", "dbg!"];

#[test]
fn nothing_is_printed_by_a_macro_that_panics() {
    let mut files = Vec::new();
    for room in ["cli", "server", "client", "storage", "fence"] {
        sources(&rooms()[room].join("src"), &mut files);
    }
    for file in files {
        let source = fs::read_to_string(&file).expect("readable");
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            let found = PRINTING.iter().find(|printing| line.contains(**printing));
            assert!(found.is_none(), "{}:{}: {}", file.display(), number + 1, line.trim());
        }
    }
}

/// Files are asked what they would split into before they become rooms of their own. Tests do not count.
#[test]
fn no_source_file_outgrows_its_reader() {
    let mut files = Vec::new();
    for path in rooms().values() {
        sources(&path.join("src"), &mut files);
    }
    for file in files {
        let source = fs::read_to_string(&file).expect("readable");
        let lines = source.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines().count();
        assert!(lines <= 750, "{} has {lines} lines", file.display());
    }
}
