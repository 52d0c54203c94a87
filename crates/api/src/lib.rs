//! The generated code of `proto/`, and nothing else: messages, clients and servers of each package.
//!
//! Fields of type `bytes` are [`bytes::Bytes`], so that a value travels from the socket to the store
//! without a copy.
#![forbid(unsafe_code)]

/// All files of `proto/` that clients may see, as an encoded `google.protobuf.FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

macro_rules! packages {
    ($($package:ident),* $(,)?) => {$(
        #[allow(clippy::all)]
        pub mod $package {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($package), ".rs"));
        }
    )*};
}

packages!(authpb, etcdserverpb, mvccpb, v3electionpb, v3lockpb);

pub mod tenure {
    #[allow(clippy::all)]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/tenure.v1.rs"));
    }

    pub mod peer {
        #[allow(clippy::all)]
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/tenure.peer.v1.rs"));
        }
    }
}
