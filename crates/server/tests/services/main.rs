//! Every service, etcd's and our own, called over the network as a client would call it.
//!
//! Each test has a member of its own, in this process and on a port that the system chose. What is
//! expected was measured on etcd 3.4.23 unless a comment says otherwise.

mod auth;
mod cluster;
mod election;
mod harness;
mod kv;
mod large;
mod lease;
mod lock;
mod maintenance;
mod members;
mod metrics;
mod tenure_barrier;
mod tenure_crowd;
mod tenure_election;
mod tenure_lock;
mod tenure_session;
mod txn;
mod watch;
mod watch_history;
mod websocket;
mod websocket_client;
