//! `tenure get`: reads keys.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use tenure_client::{Order, SortBy};

use super::pairs;
use crate::bytes_text::printable;
use crate::output::{self, Format, Record, note};
use crate::selection::Selection;
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure get greeting                   one key
  tenure get --value-only greeting      nothing but its value, for scripts
  tenure get --prefix app/ -o wide      all keys that begin with app/
  tenure get greeting --revision 12     as it was at revision 12";

/// Read keys
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Get {
    #[command(flatten)]
    selection: Selection,
    /// At most so many keys
    #[arg(long, default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(i64).range(0..))]
    limit: i64,
    /// As it was at this revision
    #[arg(long, default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(i64).range(0..))]
    revision: i64,
    /// Only the values, as they are, each with a line end
    #[arg(long, conflicts_with_all = ["keys_only", "count_only"])]
    value_only: bool,
    /// Only the keys
    #[arg(long, conflicts_with = "count_only")]
    keys_only: bool,
    /// Only how many keys there are
    #[arg(long)]
    count_only: bool,
    /// What to sort by
    #[arg(long, value_enum, default_value_t = Sort::Key)]
    sort: Sort,
    /// The last first
    #[arg(long)]
    descending: bool,
    /// From the member that answers, without asking the others: fast, possibly stale
    #[arg(long)]
    serializable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Key,
    Value,
    Version,
    Created,
    Modified,
}

impl Get {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let Session { client, format } = global.session().await?;
        let found = client.get(self.request()).await?;
        if self.count_only {
            let json = serde_json::json!({ "revision": found.header.revision, "count": found.count });
            Record { sentence: found.count.to_string(), json }.print(format)?;
            return Ok(ExitCode::SUCCESS);
        }
        if let (Some(key), true) = (self.selection.single(), found.pairs.is_empty()) {
            anyhow::bail!("there is no key {}", printable(key.as_encoded_bytes()));
        }
        if found.more && !format.is_json() {
            note(format_args!("{} of {} keys", found.pairs.len(), found.count));
        }
        match (format, self.value_only, self.keys_only) {
            (Format::Table | Format::Wide, true, _) => {
                for pair in &found.pairs {
                    output::print_bytes(&[&pair.value[..], b"\n"].concat())?;
                }
            }
            (Format::Table, _, true) => {
                for pair in &found.pairs {
                    output::print(&format!("{}\n", printable(&pair.key)))?;
                }
            }
            _ => pairs::listing(&found.pairs)
                .about("revision", found.header.revision)
                .about("count", found.count)
                .about("more", found.more)
                .print(format)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    pub fn request(&self) -> tenure_client::Get {
        let mut get = tenure_client::Get::keys(self.selection.keys()).limit(self.limit).revision(self.revision);
        let by = match self.sort {
            Sort::Key => SortBy::Key,
            Sort::Value => SortBy::Value,
            Sort::Version => SortBy::Version,
            Sort::Created => SortBy::CreateRevision,
            Sort::Modified => SortBy::ModRevision,
        };
        // Ascending by key is how keys come anyway.
        if self.descending || self.sort != Sort::Key {
            get = get.sort(by, if self.descending { Order::Descending } else { Order::Ascending });
        }
        if self.serializable {
            get = get.serializable();
        }
        if self.keys_only {
            get = get.keys_only();
        }
        if self.count_only {
            get = get.count_only();
        }
        get
    }
}
