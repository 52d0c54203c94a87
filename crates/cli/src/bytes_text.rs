//! Bytes that are mostly text, as people and programs get to see them.
//!
//! JSON prints text as text and anything else as `{"base64": …}`. Tables print text with whatever
//! would break a line or move a cursor escaped.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

pub fn to_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

/// The opposite of [`to_json`].
pub fn from_json(value: &Value) -> Result<Vec<u8>, String> {
    if let Some(text) = value.as_str() {
        return Ok(text.as_bytes().to_vec());
    }
    match value.as_object().map(|object| (object.len(), object.get("base64").and_then(Value::as_str))) {
        Some((1, Some(text))) => STANDARD.decode(text).map_err(|error| format!("{text:?} is no base64: {error}")),
        _ => Err(format!("{value} is neither a text nor {{\"base64\": …}}")),
    }
}

/// One line for a table.
pub fn printable(bytes: &[u8]) -> String {
    let mut line = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                character if character.is_control() => line.extend(character.escape_default()),
                character => line.push(character),
            }
        }
        for byte in chunk.invalid() {
            line.push_str(&format!("\\x{byte:02x}"));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_and_the_rest_is_base64() {
        assert_eq!(to_json("grüße\n".as_bytes()), json!("grüße\n"));
        assert_eq!(to_json(b"\xff\x00"), json!({"base64": "/wA="}));
        for bytes in [&b""[..], b"plain", b"\x80\x81", "ü".as_bytes()] {
            assert_eq!(from_json(&to_json(bytes)).unwrap(), bytes);
        }
        assert!(from_json(&json!(5)).is_err());
        assert!(from_json(&json!({"base64": "!"})).is_err());
        assert!(from_json(&json!({"base64": "", "more": 1})).is_err());
    }

    #[test]
    fn tables_get_one_harmless_line() {
        assert_eq!(printable("a b ü".as_bytes()), "a b ü");
        assert_eq!(printable(b"two\nlines\x1b[31m\xff"), "two\\nlines\\u{1b}[31m\\xff");
    }
}
