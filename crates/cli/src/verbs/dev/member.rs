//! One member: its process, and what is known of it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tenure_client::{Client, MemberStatus, Settings};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::layout::Place;
use crate::verbs::bound::itself_bound;

const ASK_EVERY: Duration = Duration::from_millis(250);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What would make a member something else than what its flags say.
const NOT_INHERITED: &[&str] =
    &["TENURE_JOIN", "TENURE_LEARNER", "TENURE_ADVERTISE", "TENURE_PEER_ADVERTISE", "NOTIFY_SOCKET"];

/// What is heard of a member, and of which of its lives.
pub struct Heard {
    pub index: usize,
    pub life: u64,
    pub what: News,
}

pub enum News {
    Line(String),
    /// None if it did not answer.
    Status(Option<Box<MemberStatus>>),
    /// Nothing more will be said.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Down,
    Starting,
    Paused,
    Resumed,
    Silent,
    NoLeader,
    Learner,
    Follower,
    Leader,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Down => "down",
            Role::Starting => "starting",
            Role::Paused => "paused",
            Role::Resumed => "resumed",
            Role::Silent => "silent",
            Role::NoLeader => "no leader",
            Role::Learner => "learner",
            Role::Follower => "follower",
            Role::Leader => "leader",
        }
    }

    fn of(status: &MemberStatus) -> Role {
        match status {
            status if status.is_learner => Role::Learner,
            status if status.is_leader() => Role::Leader,
            status if status.leader == 0 => Role::NoLeader,
            _ => Role::Follower,
        }
    }
}

pub struct Member {
    pub place: Place,
    pub role: Role,
    /// Of its last answer.
    pub term: u64,
    pub revision: i64,
    pub has_answered: bool,
    /// What was heard of an earlier one is of no interest any more.
    pub life: u64,
    process: Option<Process>,
}

struct Process {
    child: Child,
    client: Client,
    asking: AbortHandle,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.asking.abort();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Member {
    pub fn new(place: Place) -> Member {
        Member { place, role: Role::Down, term: 0, revision: 0, has_answered: false, life: 0, process: None }
    }

    /// Must be called on the main thread: the process is bound to its life.
    pub async fn start(
        &mut self,
        index: usize,
        flags: &[OsString],
        tell: &UnboundedSender<Heard>,
    ) -> anyhow::Result<()> {
        let Place { name, clients, peers, directory } = &self.place;
        let own: [OsString; 9] = [
            "serve".into(),
            "--name".into(),
            name.into(),
            "--data-dir".into(),
            directory.into(),
            "--listen".into(),
            clients.to_string().into(),
            "--peer-listen".into(),
            peers.to_string().into(),
        ];
        let settings =
            Settings { timeout: ANSWER_WITHIN, connect_timeout: ANSWER_WITHIN, discover: false, ..Settings::default() };
        let client = Client::connect_with(&clients.to_string(), settings).await?;
        let start = || {
            let mut command = itself_bound(&[&own[..], flags].concat())?;
            for variable in NOT_INHERITED {
                command.env_remove(variable);
            }
            // In a group of its own: Ctrl-C is for us, who tell it in our way.
            command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
        };
        let mut child = start().with_context(|| format!("cannot start {name}"))?;
        self.life += 1;
        let (life, stderr) = (self.life, child.stderr.take().expect("it was asked for"));
        let said = tell.clone();
        std::thread::spawn(move || {
            let heard = |what| said.send(Heard { index, life, what }).is_ok();
            let lines = BufReader::new(stderr).split(b'\n').map_while(Result::ok);
            let mut lines = lines.map(|line| News::Line(String::from_utf8_lossy(&line).into_owned()));
            let _ = lines.all(heard) && heard(News::Ended);
        });
        let (answers, asked) = (tell.clone(), client.clone());
        let asking = tokio::spawn(async move {
            loop {
                let what = News::Status(asked.status().await.ok().map(Box::new));
                if answers.send(Heard { index, life, what }).is_err() {
                    break;
                }
                tokio::time::sleep(ASK_EVERY).await;
            }
        });
        self.process = Some(Process { child, client, asking: asking.abort_handle() });
        (self.role, self.has_answered) = (Role::Starting, false);
        Ok(())
    }

    pub fn learn(&mut self, status: Option<&MemberStatus>) {
        match (status, self.role) {
            (_, Role::Down | Role::Paused) => {}
            (Some(status), _) => {
                self.role = Role::of(status);
                (self.term, self.revision) = (status.header.term, status.header.revision);
                self.has_answered = true;
            }
            // The answer may have been due before it could give it.
            (None, Role::Starting | Role::Resumed) => {}
            (None, _) => self.role = Role::Silent,
        }
    }

    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }

    /// Who can be asked how it is just now.
    pub fn client(&self) -> Option<Client> {
        let can_answer = self.role != Role::Paused;
        self.process.as_ref().filter(|_| can_answer).map(|process| process.client.clone())
    }

    /// At once, without a chance to say goodbye.
    pub fn kill(&mut self) {
        self.process = None;
        self.role = Role::Down;
    }

    /// It has ended by itself; tells how.
    pub fn reap(&mut self) -> Option<String> {
        let mut process = self.process.take()?;
        self.role = Role::Down;
        Some(process.child.wait().map_or_else(|error| error.to_string(), describe))
    }

    /// Stops it where it stands, or lets it go on.
    pub fn pause(&mut self) {
        let resume = self.role == Role::Paused;
        self.signal(if resume { Signal::CONT } else { Signal::STOP });
        self.role = if resume { Role::Resumed } else { Role::Paused };
    }

    /// Tells it to end, also if it is paused.
    pub fn ask_to_end(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            // Not reaped yet, so its number is still its own.
            let _ = kill_process(Pid::from_child(&process.child), signal);
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
