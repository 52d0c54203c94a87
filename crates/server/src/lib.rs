//! The tokio shell around a replica: driver, services, HTTP.
#![forbid(unsafe_code)]

mod alarms;
mod authority;
mod background;
mod calls;
pub mod config;
pub mod data;
pub mod driver;
pub mod http;
mod leadership;
pub mod limits;
pub mod listen;
mod log;
pub mod member;
pub mod metrics;
pub mod outside;
mod peer;
mod publish;
pub mod restore;
pub mod run;
pub mod services;
mod steps;
pub mod units;
