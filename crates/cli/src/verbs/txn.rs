//! `tenure txn`: compares, and one of two lists of operations, all at once.
//!
//! A transaction is given by flags, or on standard input as text ([`text`]) or as JSON ([`json`]).

mod json;
mod text;
mod words;

use std::io::{self, IsTerminal, Read};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use tenure_client::{OperationReply, TxnReply};

use super::pairs;
use crate::output::{self, Format, note};
use crate::settings::{Global, Session};

const EXAMPLE: &str = "\
Examples:
  tenure txn --if 'version(greeting) = 0' --then 'put greeting hello' --else 'get greeting'

  tenure txn <<'END'
  if
    value(owner) = me
    mod(config) < 120
  then
    put config \"new value\"
    del --prefix cache/
  else
    get owner
  END

  echo '{\"if\": [{\"version\": \"greeting\", \"is\": \"=\", \"to\": 0}],
         \"then\": [{\"put\": {\"key\": \"greeting\", \"value\": \"hello\"}}]}' | tenure txn";

/// Execute operations together if conditions hold
///
/// Conditions compare `version`, `create`, `mod` (revisions), `value` or `lease` of a key by `=`,
/// `!=`, `<` or `>`; a key that does not exist has version 0. Operations are `get`, `put` and `del`
/// with the flags of these verbs. All operations happen at one revision, or none does. Blocks may
/// also be divided by empty lines, as etcdctl has them.
#[derive(Args)]
#[command(before_help = EXAMPLE)]
pub struct Txn {
    /// A condition; all given have to hold
    #[arg(long = "if", value_name = "CONDITION")]
    when: Vec<String>,
    /// An operation for the case that they do
    #[arg(long = "then", value_name = "OPERATION")]
    then: Vec<String>,
    /// An operation for the case that they do not
    #[arg(long = "else", value_name = "OPERATION")]
    otherwise: Vec<String>,
}

impl Txn {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let transaction = self.transaction()?;
        let Session { client, format } = global.session().await?;
        let reply = client.txn(transaction).await?;
        show(&reply, format)?;
        Ok(ExitCode::SUCCESS)
    }

    fn transaction(&self) -> anyhow::Result<tenure_client::Txn> {
        if !(self.when.is_empty() && self.then.is_empty() && self.otherwise.is_empty()) {
            return Ok(text::from_lines(&self.when, &self.then, &self.otherwise)?);
        }
        if io::stdin().is_terminal() {
            note(format_args!(
                "reading a transaction from the terminal: if, then and else with their lines; end it with Ctrl-D"
            ));
        }
        let mut input = String::new();
        io::stdin().lock().read_to_string(&mut input).context("cannot read the transaction from standard input")?;
        match input.trim_start().starts_with('{') {
            true => Ok(json::parse(&input)?),
            false => Ok(text::parse(&input)?),
        }
    }
}

fn show(reply: &TxnReply, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => output::print(&output::pretty(&document(reply)))?,
        Format::Jsonl => output::print(&format!("{}\n", document(reply)))?,
        Format::Table | Format::Wide => {
            let which = if reply.succeeded { "then: the conditions hold" } else { "else: the conditions do not hold" };
            output::print(&format!("{which}, revision {}\n{}", reply.header.revision, lines(reply, format)))?;
        }
    }
    Ok(())
}

fn lines(reply: &TxnReply, format: Format) -> String {
    let mut text = String::new();
    for reply in &reply.replies {
        match reply {
            OperationReply::Get(found) if found.pairs.is_empty() => text.push_str(&format!("found {}\n", found.count)),
            OperationReply::Get(found) => text.push_str(&pairs::listing(&found.pairs).render(format)),
            OperationReply::Put(written) => {
                text.push_str("put\n");
                if let Some(previous) = &written.previous {
                    text.push_str(&pairs::listing(std::slice::from_ref(previous)).render(format));
                }
            }
            OperationReply::Delete(deleted) => {
                text.push_str(&format!("deleted {}\n", deleted.count));
                if !deleted.previous.is_empty() {
                    text.push_str(&pairs::listing(&deleted.previous).render(format));
                }
            }
            OperationReply::Txn(nested) => {
                text.push_str(if nested.succeeded { "then:\n" } else { "else:\n" });
                text.push_str(&lines(nested, format));
            }
        }
    }
    text
}

fn document(reply: &TxnReply) -> Value {
    let one = |reply: &OperationReply| match reply {
        OperationReply::Get(found) => json!({ "get": {
            "count": found.count, "more": found.more, "pairs": pairs::json_list(&found.pairs),
        }}),
        OperationReply::Put(written) => json!({ "put": { "previous": written.previous.as_ref().map(pairs::json) }}),
        OperationReply::Delete(deleted) => json!({ "del": {
            "deleted": deleted.count, "previous": pairs::json_list(&deleted.previous),
        }}),
        OperationReply::Txn(nested) => json!({ "txn": document(nested) }),
    };
    json!({
        "revision": reply.header.revision,
        "succeeded": reply.succeeded,
        "replies": reply.replies.iter().map(one).collect::<Vec<_>>(),
    })
}
