//! Cuts a line into words, with quotes as in a shell.

/// Words are divided by blanks; `'…'` takes everything as it is, `"…"` knows `\n \t \r \" \\ \xHH`.
pub fn split(line: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, after) = word(rest, |character| character.is_whitespace())?;
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

/// One word, up to a character that ends it outside of quotes; with what follows.
pub fn word(text: &str, ends: impl Fn(char) -> bool) -> Result<(Vec<u8>, &str), String> {
    let mut word = Vec::new();
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        rest = match character {
            '\'' => {
                let (inside, after) = rest[1..].split_once('\'').ok_or("a ' is not closed")?;
                word.extend_from_slice(inside.as_bytes());
                after
            }
            '"' => double_quoted(&rest[1..], &mut word)?,
            character if ends(character) => break,
            character => {
                word.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                &rest[character.len_utf8()..]
            }
        };
    }
    Ok((word, rest))
}

fn double_quoted<'text>(text: &'text str, word: &mut Vec<u8>) -> Result<&'text str, String> {
    let mut rest = text;
    loop {
        let character = rest.chars().next().ok_or("a \" is not closed")?;
        rest = &rest[character.len_utf8()..];
        match character {
            '"' => return Ok(rest),
            '\\' => {
                let escaped = rest.chars().next().ok_or("a \" is not closed")?;
                rest = &rest[escaped.len_utf8()..];
                match escaped {
                    'n' => word.push(b'\n'),
                    't' => word.push(b'\t'),
                    'r' => word.push(b'\r'),
                    '"' | '\\' => word.push(escaped as u8),
                    'x' => {
                        let digits = rest.get(..2).ok_or("\\x is followed by two hexadecimal digits")?;
                        let byte = u8::from_str_radix(digits, 16);
                        word.push(byte.map_err(|_| {
                            format!("\\x{digits} is no byte: \\x is followed by two hexadecimal digits")
                        })?);
                        rest = &rest[2..];
                    }
                    other => return Err(format!("\\{other} is unknown: \\n \\t \\r \\\" \\\\ and \\xHH are known")),
                }
            }
            character => word.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_words_together() {
        let words = split(r#"  put 'a b' "c\n\"d\x00" e"f g"h "" "#).unwrap();
        assert_eq!(words, [&b"put"[..], b"a b", b"c\n\"d\0", b"ef gh", b""]);
        assert!(split("   ").unwrap().is_empty());
    }

    #[test]
    fn what_is_open_or_unknown_is_refused() {
        for wrong in ["'a", "\"a", r#""\q""#, r#""\x1""#, r#""\xzz""#, "\"\\"] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }
}
