//! What members log, as a line for people: they write JSON, because their stderr is a pipe.

use serde_json::{Map, Value};

pub const WARNING: &str = "warning: ";

#[derive(Debug, PartialEq, Eq)]
pub enum Saying {
    Logged {
        label: &'static str,
        text: String,
    },
    /// Why it ends.
    LastWord(String),
}

impl Saying {
    pub fn parse(line: &str) -> Saying {
        if let Some(error) = line.strip_prefix("error: ") {
            return Saying::LastWord(error.to_owned());
        }
        let Ok(mut event) = serde_json::from_str::<Map<String, Value>>(line) else {
            return Saying::Logged { label: "", text: line.to_owned() };
        };
        let mut take = |key: &str| event.shift_remove(key).as_ref().map(plain).unwrap_or_default();
        let (level, mut text) = (take("level"), take("message"));
        for noise in ["timestamp", "target"] {
            take(noise);
        }
        for (key, value) in &event {
            text += &format!(" {key}={}", plain(value));
        }
        let label = match level.as_str() {
            "ERROR" => "error: ",
            "WARN" => WARNING,
            _ => "",
        };
        Saying::Logged { label, text: text.trim_start().to_owned() }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_become_sentences() {
        let logged = |label, text: &str| Saying::Logged { label, text: text.to_owned() };
        let event = r#"{"timestamp":"2025","level":"WARN","message":"slow disk","ms":12,"file":"a","target":"t"}"#;
        assert_eq!(Saying::parse(event), logged("warning: ", "slow disk ms=12 file=a"));
        assert_eq!(Saying::parse(r#"{"level":"INFO","message":"ready"}"#), logged("", "ready"));
        assert_eq!(Saying::parse("anything"), logged("", "anything"));
        assert_eq!(Saying::parse("error: no such port"), Saying::LastWord("no such port".to_owned()));
    }
}
