//! Transactions as JSON, for programs.
//!
//! ```json
//! {"if":   [{"version": "greeting", "is": "=", "to": 0}],
//!  "then": [{"put": {"key": "greeting", "value": "hello", "lease": "70c9"}}],
//!  "else": [{"get": {"key": "gre", "prefix": true}}, {"del": {"key": "old"}}, {"txn": {"then": []}}]}
//! ```
//!
//! Keys and values are texts, or `{"base64": …}` for anything else: as they are printed.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tenure_client::{Compare, Delete, Get, Keys, Operation, Put, Txn};

use super::text;
use crate::bytes_text::from_json;
use crate::verbs::lease::parse_lease;

pub fn parse(input: &str) -> anyhow::Result<Txn> {
    let document: Document = serde_json::from_str(input)?;
    document.transaction().map_err(anyhow::Error::msg)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default, rename = "if")]
    when: Vec<Condition>,
    #[serde(default)]
    then: Vec<Step>,
    #[serde(default, rename = "else")]
    otherwise: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Condition {
    version: Option<Text>,
    create: Option<Text>,
    #[serde(rename = "mod")]
    modified: Option<Text>,
    value: Option<Text>,
    lease: Option<Text>,
    is: String,
    to: Value,
    #[serde(default)]
    prefix: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Step {
    Get(GetStep),
    Put(PutStep),
    Del(DelStep),
    Txn(Document),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetStep {
    key: Text,
    #[serde(default)]
    prefix: bool,
    #[serde(default)]
    limit: i64,
    #[serde(default)]
    revision: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PutStep {
    key: Text,
    value: Text,
    lease: Option<String>,
    #[serde(default)]
    previous: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DelStep {
    key: Text,
    #[serde(default)]
    prefix: bool,
    #[serde(default)]
    previous: bool,
}

struct Text(Vec<u8>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        from_json(&Value::deserialize(deserializer)?).map(Text).map_err(serde::de::Error::custom)
    }
}

impl Document {
    fn transaction(self) -> Result<Txn, String> {
        let steps = |steps: Vec<Step>| steps.into_iter().map(Step::operation).collect::<Result<Vec<_>, _>>();
        Ok(Txn {
            when: self.when.into_iter().map(Condition::compare).collect::<Result<_, _>>()?,
            then: steps(self.then)?,
            otherwise: steps(self.otherwise)?,
        })
    }
}

impl Condition {
    fn compare(self) -> Result<Compare, String> {
        let targets = [
            ("version", self.version),
            ("create", self.create),
            ("mod", self.modified),
            ("value", self.value),
            ("lease", self.lease),
        ];
        let mut given = targets.into_iter().filter_map(|(name, key)| Some((name, key?.0)));
        let (Some((name, key)), None) = (given.next(), given.next()) else {
            return Err("a condition names one of version, create, mod, value and lease, with the key".to_owned());
        };
        let relation = text::relation_named(&self.is).ok_or_else(|| format!("{:?} is none of = != < >", self.is))?;
        let operand = match &self.to {
            Value::Number(number) => number.to_string().into_bytes(),
            other => from_json(other)?,
        };
        let keys = if self.prefix { Keys::prefix(key) } else { Keys::one(key) };
        Ok(Compare::new(keys, text::target(name, &operand)?, relation))
    }
}

impl Step {
    fn operation(self) -> Result<Operation, String> {
        let keys = |key: Text, prefix: bool| if prefix { Keys::prefix(key.0) } else { Keys::one(key.0) };
        Ok(match self {
            Step::Get(step) => {
                Operation::Get(Get::keys(keys(step.key, step.prefix)).limit(step.limit).revision(step.revision))
            }
            Step::Put(step) => {
                let lease = step.lease.as_deref().map(parse_lease).transpose()?.unwrap_or(0);
                let put = Put::new(step.key.0, step.value.0).lease(lease);
                Operation::Put(if step.previous { put.previous() } else { put })
            }
            Step::Del(step) => {
                let delete = Delete::keys(keys(step.key, step.prefix));
                Operation::Delete(if step.previous { delete.previous() } else { delete })
            }
            Step::Txn(document) => Operation::Txn(document.transaction()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_as_text() {
        let json = r#"{"if": [{"version": "greeting", "is": "=", "to": 0}, {"value": "k", "is": "!=", "to": "v"}],
                       "then": [{"put": {"key": "greeting", "value": "hello", "lease": "70c9"}}],
                       "else": [{"get": {"key": "gre", "prefix": true, "limit": 3}}, {"del": {"key": "old"}}]}"#;
        let text = "if\nversion(greeting) = 0\nvalue(k) != v\nthen\nput greeting hello --lease 70c9\nelse\nget --prefix gre --limit 3\ndel old";
        assert_eq!(parse(json).unwrap(), text::parse(text).unwrap());
    }

    #[test]
    fn bytes_and_nesting_read() {
        let json = r#"{"then": [{"txn": {"then": [{"put": {"key": {"base64": "/wA="}, "value": ""}}]}}]}"#;
        let inner = Txn { then: vec![Operation::Put(Put::new(vec![0xff, 0], ""))], ..Txn::default() };
        assert_eq!(parse(json).unwrap().then, [Operation::Txn(inner)]);
    }

    #[test]
    fn mistakes_are_named() {
        for (json, reason) in [
            (r#"{"when": []}"#, "when"),
            (r#"{"if": [{"is": "=", "to": 0}]}"#, "names one of"),
            (r#"{"if": [{"version": "a", "mod": "a", "is": "=", "to": 0}]}"#, "names one of"),
            (r#"{"if": [{"version": "a", "is": "~", "to": 0}]}"#, "none of"),
            (r#"{"if": [{"version": "a", "is": "=", "to": "x"}]}"#, "number"),
            (r#"{"then": [{"put": {"key": "a", "value": 5}}]}"#, "neither a text"),
        ] {
            let error = format!("{:#}", parse(json).unwrap_err());
            assert!(error.contains(reason), "{json}: {error}");
        }
    }
}
