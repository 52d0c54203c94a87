//! Keys with their values, as several verbs show them.

use serde_json::{Value, json};
use tenure_client::KeyValue;

use crate::bytes_text::{printable, to_json};
use crate::output::{Column, Listing, column, id_json, id_text, wide};

const COLUMNS: &[Column] =
    &[column("KEY"), column("VALUE"), wide("CREATED"), wide("MODIFIED"), wide("VERSION"), wide("LEASE")];

pub fn listing(pairs: &[KeyValue]) -> Listing {
    let mut listing = Listing::new("pairs", COLUMNS);
    for pair in pairs {
        listing.row(cells(pair), json(pair));
    }
    listing
}

pub fn cells(pair: &KeyValue) -> Vec<String> {
    vec![
        printable(&pair.key),
        printable(&pair.value),
        pair.create_revision.to_string(),
        pair.mod_revision.to_string(),
        pair.version.to_string(),
        id_text(pair.lease),
    ]
}

pub fn json(pair: &KeyValue) -> Value {
    json!({
        "key": to_json(&pair.key),
        "value": to_json(&pair.value),
        "create_revision": pair.create_revision,
        "mod_revision": pair.mod_revision,
        "version": pair.version,
        "lease": id_json(pair.lease),
    })
}

pub fn json_list(pairs: &[KeyValue]) -> Vec<Value> {
    pairs.iter().map(json).collect()
}
