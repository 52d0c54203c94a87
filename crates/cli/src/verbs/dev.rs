//! `tenure dev`: a cluster on this machine, in one terminal, whose members can be killed and paused by a key.

mod keys;
mod layout;
mod member;
mod saying;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::exec::signals::{self, Signals};
use super::serving::ClientOptions;
use crate::keyboard::Keyboard;
use crate::output::{self, Column, Format, Listing, color_on_stderr, color_on_stdout, column, note, number};
use crate::settings::Global;
use keys::Order;
use layout::Layout;
use member::{Heard, Member, News, Role};
use saying::{Saying, WARNING};

const EXAMPLE: &str = "\
Examples:
  tenure dev                            three members, clients at 127.0.0.1:2379, 2380 and 2381
  tenure dev --members 5 --data-dir /tmp/five
  tenure dev --client-port 22379 --peer-port 22479";

const KEYS: &str = "\
Keys:
  1 2 3        kill that member (as with kill -9), or start it again
  p1 p2 p3     pause that member (SIGSTOP), or let it go on
  s            how all members are
  q, Ctrl-C    stop them and quit; their data is kept for the next time
  ?            these keys
Without a terminal the same are read from standard input, as lines.";

/// How long members may take to end before they are killed.
const END_PATIENCE: Duration = Duration::from_secs(8);

/// Run a cluster on this machine, to develop against and to try what happens
///
/// Member n1 listens at the given ports, n2 at the next ones, and so on. Whenever a member changes its role,
/// a line tells so; warnings and errors of the members are shown with their names. No member outlives this
/// command.
#[derive(Args)]
#[command(before_help = EXAMPLE, after_help = KEYS)]
pub struct Dev {
    /// Where clients connect to the first member; the others follow
    #[arg(long, env = "TENURE_DEV_CLIENT_PORT", value_name = "PORT", default_value_t = 2379)]
    client_port: u16,
    /// Where other members connect to the first member; the others follow
    #[arg(long, env = "TENURE_DEV_PEER_PORT", value_name = "PORT", default_value_t = 2479)]
    peer_port: u16,
    /// How many members, 1 to 9
    #[arg(long, env = "TENURE_DEV_MEMBERS", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    members: u16,
    /// Where they keep their data
    #[arg(long, env = "TENURE_DEV_DATA_DIR", value_name = "DIR", default_value = "tenure-dev")]
    data_dir: PathBuf,
    #[command(flatten)]
    _client_options: ClientOptions,
}

const COLUMNS: &[Column] =
    &[column("MEMBER"), column("ENDPOINT"), column("ROLE"), number("TERM"), number("REVISION"), number("PID")];

impl Dev {
    pub async fn run(self, global: Global) -> anyhow::Result<ExitCode> {
        let layout = Layout::new(self.client_port, self.peer_port, self.members, self.data_dir)?;
        layout.check_ports()?;
        layout.prepare_directory()?;
        let mut signals = Signals::listen(signals::ENDING)?;
        signals.also(&[Signal::CONT])?;
        let keyboard = Keyboard::take();
        greet(&layout, keyboard.is_some());
        let (mut cluster, mut heard) = Cluster::new(layout, &global);
        for index in 0..cluster.members.len() {
            cluster.start(index).await?;
        }
        let mut orders = keys::orders(keyboard.is_some());
        loop {
            tokio::select! {
                Some(news) = heard.recv() => cluster.hear(news)?,
                Some(order) = orders.recv() => match order {
                    Order::Quit => break,
                    order => cluster.obey(order).await?,
                },
                signal = signals.next() => match (signal, &keyboard) {
                    (Signal::CONT, Some(keyboard)) => keyboard.single_keys(),
                    (Signal::CONT, None) => {}
                    _ => break,
                },
            }
        }
        note(format_args!("stopping"));
        cluster.end(&mut heard, &mut signals).await?;
        Ok(ExitCode::SUCCESS)
    }
}

fn greet(layout: &Layout, has_keys: bool) {
    let endpoints = layout.endpoints();
    note(format_args!("tenure {}, {} members", env!("CARGO_PKG_VERSION"), layout.places.len()));
    note(format_args!("  data     {}", layout.directory.display()));
    note(format_args!("  try      tenure --endpoints {endpoints} status"));
    if has_keys {
        let last = layout.places.len();
        note(format_args!("  keys     1-{last} kill or start, p1-p{last} pause or resume, s status, q quit, ? help"));
    }
}

/// Writes to stdout. The members run on if nothing reads it any more.
fn tell(text: &str) {
    let _ = output::print(text);
}

struct Cluster {
    members: Vec<Member>,
    /// Beyond those of each member.
    flags: Vec<OsString>,
    tell: UnboundedSender<Heard>,
    /// The last words of each member, told when it has ended.
    last_words: Vec<Option<String>>,
    is_ending: bool,
}

impl Cluster {
    fn new(layout: Layout, global: &Global) -> (Cluster, UnboundedReceiver<Heard>) {
        let mut flags: Vec<OsString> = vec!["--cluster".into(), layout.cluster().into()];
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if !is_set("TENURE_LOG_LEVEL") && !is_set("TENURE_LOG") {
            flags.extend(["--log-level".into(), "warn".into()]);
        }
        if let Some(file) = &global.config {
            flags.extend(["--config".into(), file.into()]);
        }
        let members: Vec<Member> = layout.places.into_iter().map(Member::new).collect();
        let (tell, heard) = unbounded_channel();
        let last_words = vec![None; members.len()];
        (Cluster { members, flags, tell, last_words, is_ending: false }, heard)
    }

    async fn start(&mut self, index: usize) -> anyhow::Result<()> {
        self.last_words[index] = None;
        self.members[index].start(index, &self.flags, &self.tell).await
    }

    async fn obey(&mut self, order: Order) -> anyhow::Result<()> {
        match order {
            Order::Toggle(index) | Order::Pause(index) if index >= self.members.len() => {
                note(format_args!("there is no member {}", index + 1));
            }
            Order::Toggle(index) => {
                match self.members[index].is_up() {
                    true => self.members[index].kill(),
                    false => self.start(index).await.unwrap_or_else(|error| crate::report(&error)),
                }
                self.show(index);
            }
            Order::Pause(index) if self.members[index].is_up() => {
                self.members[index].pause();
                self.show(index);
            }
            Order::Pause(index) => {
                note(format_args!("{} is down: {} starts it", self.members[index].place.name, index + 1));
            }
            Order::Status => {
                self.ask_all().await?;
                tell(&self.listing().render(Format::Table));
            }
            Order::Help | Order::Quit => note(KEYS),
            Order::Unknown(key) => note(format_args!("{key:?} means nothing here; ? shows what does")),
        }
        Ok(())
    }

    /// How they are just now, not when they were last asked.
    async fn ask_all(&mut self) -> anyhow::Result<()> {
        let mut tasks = Vec::new();
        for (index, member) in self.members.iter().enumerate() {
            if let Some(client) = member.client() {
                tasks.push((index, member.life, tokio::spawn(async move { client.status().await.ok() })));
            }
        }
        for (index, life, task) in tasks {
            let status = task.await.expect("asking for a status does not panic");
            self.hear(Heard { index, life, what: News::Status(status.map(Box::new)) })?;
        }
        Ok(())
    }

    fn hear(&mut self, Heard { index, life, what }: Heard) -> anyhow::Result<()> {
        let member = &mut self.members[index];
        if life != member.life {
            return Ok(());
        }
        match what {
            News::Line(line) => match Saying::parse(&line) {
                Saying::LastWord(word) => self.last_words[index] = Some(word),
                // That they miss each other is no news then.
                Saying::Logged { label: WARNING, .. } if self.is_ending => {}
                Saying::Logged { label, text } => {
                    let name = &member.place.name;
                    match color_on_stderr() && !label.is_empty() {
                        true => note(format_args!("{name}  \x1b[1;33m{label}\x1b[0m{text}")),
                        false => note(format_args!("{name}  {label}{text}")),
                    }
                }
            },
            News::Status(status) => {
                let before = (member.role, member.term);
                member.learn(status.as_deref());
                if before != (member.role, member.term) && !self.is_ending {
                    self.show(index);
                }
            }
            News::Ended => {
                let is_first_start = life == 1 && !member.has_answered;
                // None if it was killed by us.
                let Some(end) = member.reap() else { return Ok(()) };
                let end = self.last_words[index].take().unwrap_or(end);
                let name = &member.place.name;
                match is_first_start && !self.is_ending {
                    true => bail!("{name} cannot start: {end}"),
                    false if self.is_ending => {}
                    false => {
                        note(format_args!("{name}  ended: {end}"));
                        self.show(index);
                    }
                }
            }
        }
        Ok(())
    }

    /// A line on how this member is now.
    fn show(&self, index: usize) {
        let Member { place, role, term, revision, .. } = &self.members[index];
        let color = match role {
            _ if !color_on_stdout() => None,
            Role::Leader => Some("\x1b[1;32m"),
            Role::Down => Some("\x1b[1;31m"),
            Role::Paused | Role::Silent | Role::NoLeader => Some("\x1b[1;33m"),
            Role::Starting | Role::Resumed | Role::Learner | Role::Follower => None,
        };
        let (on, off) = color.map_or(("", ""), |color| (color, "\x1b[0m"));
        let known = match role {
            Role::Leader | Role::Follower | Role::NoLeader | Role::Learner => {
                format!("term {term}, revision {revision}")
            }
            _ => String::new(),
        };
        let line = format!("{}  {on}{:<9}{off}  {known}", place.name, role.name());
        tell(&format!("{}\n", line.trim_end()));
    }

    fn listing(&self) -> Listing {
        let mut listing = Listing::new("members", COLUMNS);
        for member in &self.members {
            let known = |value: String| if member.has_answered { value } else { "-".to_owned() };
            let cells = vec![
                member.place.name.clone(),
                member.place.clients.to_string(),
                member.role.name().to_owned(),
                known(member.term.to_string()),
                known(member.revision.to_string()),
                member.id().map_or_else(|| "-".to_owned(), |id| id.to_string()),
            ];
            listing.row(cells, Value::Null);
        }
        listing
    }

    /// Tells all of them to end; who does not, or not before a second signal comes, is killed.
    async fn end(&mut self, heard: &mut UnboundedReceiver<Heard>, signals: &mut Signals) -> anyhow::Result<()> {
        self.is_ending = true;
        self.members.iter().for_each(Member::ask_to_end);
        let mut patience = std::pin::pin!(tokio::time::sleep(END_PATIENCE));
        while self.members.iter().any(Member::is_up) {
            tokio::select! {
                Some(news) = heard.recv() => self.hear(news)?,
                () = &mut patience => break,
                signal = signals.next() => if signal != Signal::CONT { break },
            }
        }
        for member in self.members.iter_mut().filter(|member| member.is_up()) {
            note(format_args!("{} does not end and is killed", member.place.name));
            member.kill();
        }
        Ok(())
    }
}
