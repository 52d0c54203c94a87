//! Which keys a verb is about: one, those with a prefix, a range, or all.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::Args;
use tenure_client::Keys;

#[derive(Debug, Clone, Args)]
pub struct Selection {
    /// The key; with --prefix, how the keys begin; with --to or --from, the first one
    #[arg(value_name = "KEY", required_unless_present = "all")]
    key: Option<OsString>,
    /// All keys that begin with KEY
    #[arg(long, short, conflicts_with_all = ["to", "from", "all"])]
    prefix: bool,
    /// All keys from KEY on and before this one
    #[arg(long, value_name = "END", conflicts_with_all = ["from", "all"])]
    to: Option<OsString>,
    /// All keys from KEY on
    #[arg(long, conflicts_with = "all")]
    from: bool,
    /// All keys there are
    #[arg(long, conflicts_with = "key")]
    all: bool,
}

impl Selection {
    pub fn keys(&self) -> Keys {
        let bytes = |text: &OsString| text.clone().into_vec();
        let key = self.key.as_ref().map(bytes).unwrap_or_default();
        match (&self.to, self.prefix, self.from) {
            (_, _, _) if self.all => Keys::all(),
            (Some(end), _, _) => Keys::range(key, bytes(end)),
            (None, true, _) => Keys::prefix(key),
            (None, false, true) => Keys::from(key),
            (None, false, false) => Keys::one(key),
        }
    }

    /// Whether a single key is meant, by name.
    pub fn single(&self) -> Option<&OsString> {
        if self.prefix || self.to.is_some() || self.from { None } else { self.key.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        selection: Selection,
    }

    fn keys(arguments: &[&str]) -> Option<Keys> {
        let arguments = std::iter::once(&"verb").chain(arguments);
        Some(Command::try_parse_from(arguments).ok()?.selection.keys())
    }

    #[test]
    fn flags_choose_the_keys() {
        assert_eq!(keys(&["a"]), Some(Keys::one("a")));
        assert_eq!(keys(&["a", "--prefix"]), Some(Keys::prefix("a")));
        assert_eq!(keys(&["a", "--to", "c"]), Some(Keys::range("a", "c")));
        assert_eq!(keys(&["a", "--from"]), Some(Keys::from("a")));
        assert_eq!(keys(&["--all"]), Some(Keys::all()));
    }

    #[test]
    fn contradictions_are_refused() {
        for wrong in [&[][..], &["a", "--all"], &["a", "--prefix", "--from"], &["a", "--to", "b", "--prefix"]] {
            assert_eq!(keys(wrong), None, "{wrong:?}");
        }
    }
}
