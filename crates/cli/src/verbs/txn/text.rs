//! Transactions as text: conditions and operations, one a line.
//!
//! Blocks begin with a line `if`, `then` or `else`; or, as etcdctl has it, an empty line ends one
//! block and begins the next. A line that begins with `#` is a comment.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::{Parser, Subcommand};
use tenure_client::{Compare, Keys, Operation, Relation, Target, Txn};

use super::words;
use crate::bytes_text::printable;
use crate::verbs::{del, get, put};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line:?}: {reason}")]
pub struct Mistake {
    line: String,
    reason: String,
}

pub fn parse(input: &str) -> Result<Txn, Mistake> {
    let lines: Vec<&str> = input.lines().map(str::trim).filter(|line| !line.starts_with('#')).collect();
    let named = lines.iter().any(|line| block_named(line).is_some());
    let mut blocks: [Vec<&str>; 3] = Default::default();
    let mut block = 0;
    for line in lines {
        match (block_named(line), line) {
            (Some(number), _) => block = number,
            (None, "") if named => {}
            // More empty lines at the end mean nothing.
            (None, "") => block = (block + 1).min(3),
            (None, _) if block == 3 => return Err(mistake(line, "there are three blocks: conditions, then, else")),
            (None, _) => blocks[block].push(line),
        }
    }
    let [when, then, otherwise] = blocks;
    from_lines(&when, &then, &otherwise)
}

pub fn from_lines(
    when: &[impl AsRef<str>],
    then: &[impl AsRef<str>],
    otherwise: &[impl AsRef<str>],
) -> Result<Txn, Mistake> {
    Ok(Txn {
        when: when.iter().map(|line| condition(line.as_ref())).collect::<Result<_, _>>()?,
        then: then.iter().map(|line| operation(line.as_ref())).collect::<Result<_, _>>()?,
        otherwise: otherwise.iter().map(|line| operation(line.as_ref())).collect::<Result<_, _>>()?,
    })
}

fn block_named(line: &str) -> Option<usize> {
    match line.trim_end_matches(':').to_ascii_lowercase().as_str() {
        "if" | "compares" => Some(0),
        "then" | "success requests (get, put, del)" => Some(1),
        "else" | "failure requests (get, put, del)" => Some(2),
        _ => None,
    }
}

/// `target(KEY) RELATION OPERAND`, with `--prefix` at the end for all keys that begin so.
fn condition(line: &str) -> Result<Compare, Mistake> {
    let wrong = |reason: &str| mistake(line, reason);
    let (target, rest) = line
        .split_once('(')
        .ok_or_else(|| wrong("a condition reads like version(KEY) = 0 or value(KEY) != \"text\""))?;
    let (key, rest) = words::word(rest, |character| character == ')').map_err(|reason| wrong(&reason))?;
    let rest = rest.strip_prefix(')').ok_or_else(|| wrong("the key's ) is missing"))?.trim_start();
    let (relation, rest) = relation(rest).ok_or_else(|| wrong("expected = or != or < or > after the key"))?;
    let operands = words::split(rest).map_err(|reason| wrong(&reason))?;
    let (operand, keys) = match operands.as_slice() {
        [operand] => (operand, Keys::one(key)),
        [operand, flag] if flag == b"--prefix" => (operand, Keys::prefix(key)),
        [] => return Err(wrong("what to compare with is missing")),
        _ => return Err(wrong("too many words: quote what belongs together")),
    };
    let target = self::target(target.trim(), operand).map_err(|reason| wrong(&reason))?;
    Ok(Compare::new(keys, target, relation))
}

pub fn target(name: &str, operand: &[u8]) -> Result<Target, String> {
    let text = || printable(operand);
    let number = || text().parse::<i64>().map_err(|_| format!("{name} is compared with a number, not with {}", text()));
    Ok(match name {
        "version" | "ver" => Target::Version(number()?),
        "create" | "c" => Target::CreateRevision(number()?),
        "mod" | "m" => Target::ModRevision(number()?),
        "value" | "val" => Target::Value(operand.to_vec().into()),
        "lease" if operand == b"0" => Target::Lease(0),
        "lease" => Target::Lease(crate::verbs::lease::parse_lease(&text())?),
        _ => return Err(format!("{name:?} is unknown: version, create, mod, value and lease can be compared")),
    })
}

fn relation(text: &str) -> Option<(Relation, &str)> {
    const RELATIONS: [(&str, Relation); 5] = [
        ("==", Relation::Equal),
        ("!=", Relation::NotEqual),
        ("=", Relation::Equal),
        ("<", Relation::Less),
        (">", Relation::Greater),
    ];
    RELATIONS.into_iter().find_map(|(sign, relation)| Some((relation, text.strip_prefix(sign)?)))
}

pub fn relation_named(sign: &str) -> Option<Relation> {
    relation(sign).filter(|(_, rest)| rest.is_empty()).map(|(relation, _)| relation)
}

/// An operation is a verb with its flags, so clap reads it, too.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_help_subcommand = true)]
struct OperationLine {
    #[command(subcommand)]
    operation: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Get(get::Get),
    Put(put::Put),
    Del(del::Del),
}

fn operation(line: &str) -> Result<Operation, Mistake> {
    let words = words::split(line).map_err(|reason| mistake(line, &reason))?;
    let words = words.into_iter().map(OsString::from_vec);
    let parsed = OperationLine::try_parse_from(words).map_err(|error| mistake(line, &first_line(&error)))?;
    Ok(match parsed.operation {
        Verb::Get(get) => Operation::Get(get.request()),
        Verb::Put(put) => Operation::Put(put.complete_request().map_err(|reason| mistake(line, &reason))?),
        Verb::Del(del) => Operation::Delete(del.request()),
    })
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

fn mistake(line: &str, reason: &str) -> Mistake {
    Mistake { line: line.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::{Delete, Get, Put};

    fn expected() -> Txn {
        Txn {
            when: vec![Compare::absent("greeting"), Compare::new("a key", Target::ModRevision(7), Relation::Greater)],
            then: vec![Operation::Put(Put::new("greeting", "hello world"))],
            otherwise: vec![Operation::Get(Get::prefix("gre")), Operation::Delete(Delete::keys("old"))],
        }
    }

    #[test]
    fn blocks_by_name() {
        let text = "# a comment\nif\n  version(greeting) = 0\n  mod('a key') > 7\n\nthen\n  put greeting \"hello world\"\nelse:\n get gre --prefix\n del old\n";
        assert_eq!(parse(text).unwrap(), expected());
    }

    #[test]
    fn blocks_by_empty_lines_as_etcdctl_has_them() {
        let text = "ver(\"greeting\") = \"0\"\nmod(\"a key\") > \"7\"\n\nput greeting 'hello world'\n\nget gre --prefix\ndel old\n\n";
        assert_eq!(parse(text).unwrap(), expected());
        let unconditional = parse("\nput a b\n\n").unwrap();
        assert_eq!((unconditional.when.len(), unconditional.then.len()), (0, 1));
    }

    #[test]
    fn every_target_and_relation_reads() {
        let target = |line| condition(line).map(|compare| (compare.target, compare.relation));
        assert_eq!(target("value(k) != a"), Ok((Target::Value("a".into()), Relation::NotEqual)));
        assert_eq!(target("create(k)<5"), Ok((Target::CreateRevision(5), Relation::Less)));
        assert_eq!(target("lease(k) == 70c9"), Ok((Target::Lease(0x70c9), Relation::Equal)));
        assert_eq!(target("lease(k) = 0"), Ok((Target::Lease(0), Relation::Equal)));
        assert_eq!(condition("value(k/) = a --prefix").unwrap().keys, Keys::prefix("k/"));
    }

    #[test]
    fn mistakes_name_the_line_and_the_reason() {
        for (text, reason) in [
            ("if\nversion = 0", "reads like version(KEY) = 0"),
            ("if\nversion(a = 0", ") is missing"),
            ("if\nversion(a) 0", "expected = or !="),
            ("if\nversion(a) = b", "compared with a number"),
            ("if\nage(a) = 1", "\"age\" is unknown"),
            ("if\nversion(a) = ", "is missing"),
            ("if\nvalue(a) = b c", "too many words"),
            ("then\nput a", "the value is missing"),
            ("then\nfetch a", "unrecognized subcommand"),
            ("then\nget a --no-such-flag", "unexpected argument"),
            ("then\nput 'a b", "not closed"),
            ("\n\n\nput a b", "three blocks"),
        ] {
            let mistake = parse(text).unwrap_err().to_string();
            assert!(mistake.contains(reason), "{text}: {mistake}");
            assert!(mistake.contains(text.lines().last().unwrap().trim()), "{text}: {mistake}");
        }
    }
}
