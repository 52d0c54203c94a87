//! Compiles `proto/` with protox, in Rust: a fresh machine needs no protoc.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const FILES: &[&str] = &[
    "etcd/rpc.proto",
    "etcd/lock.proto",
    "etcd/election.proto",
    "tenure/lock.proto",
    "tenure/cluster.proto",
    PEER_FILE,
];

/// Spoken between members only: clients have no use for its description.
const PEER_FILE: &str = "tenure/peer.proto";

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.display());

    let descriptors = protox::Compiler::new([root])?
        .include_imports(true)
        .include_source_info(true)
        .open_files(FILES)?
        .file_descriptor_set();

    // Comments become documentation of the generated code, but reflection has no use for them.
    let mut published = descriptors.clone();
    published.file.retain(|file| file.name() != PEER_FILE);
    for file in &mut published.file {
        file.source_code_info = None;
    }
    let output = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(output.join("descriptors.bin"), published.encode_to_vec())?;

    tonic_prost_build::configure()
        .bytes(".")
        // Rare and large beside the others: a grant would be moved about with room for them.
        .boxed(".tenure.v1.SessionResponse.response.opened")
        .boxed(".tenure.v1.SessionResponse.response.refused")
        .build_transport(true)
        .compile_fds(descriptors)?;
    Ok(())
}
