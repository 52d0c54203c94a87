//! Two members on real sockets, each with a data directory of its own, and a host that only writes down what
//! it is told.

mod admission;
mod messages;
mod side;
mod snapshots;
