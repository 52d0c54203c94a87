//! A session's stream is told, once and at once, of everything that its lease held and holds no more.
//!
//! What it would not notice: a grant that comes and goes within what a snapshot skips, a wrong cause, and anything
//! while no stream of the session is open. Nor that an Unlock or a Leave of another client
//! ended what the session held: members do not tell of those.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{Command, LeaseId, MemberId, Revision};
use tenure_replica::{SessionNotice, StreamId};

use super::turns::{Turn, Turns};
use super::{Check, Context, Seen};

#[derive(Default)]
pub struct Sessions {
    turns: Turns,
    /// Which stream carries the session of a lease, at each member.
    open: BTreeMap<(MemberId, LeaseId), StreamId>,
    /// Those that were opened or closed in the step under way: what it applied may stand before that, or behind it.
    changing: BTreeSet<(MemberId, LeaseId, StreamId)>,
    /// Ends of holders, by index, and whether a client gave them back.
    ends: BTreeMap<u64, (bool, Vec<Turn>)>,
    /// What must be told in the step under way.
    due: BTreeSet<(StreamId, Vec<u8>, Revision)>,
    /// What may be.
    possible: BTreeSet<(StreamId, Vec<u8>, Revision)>,
}

impl Check for Sessions {
    fn name(&self) -> &'static str {
        "session: every loss is told, once"
    }

    fn see(&mut self, seen: &Seen<'_>, context: &Context<'_>) -> Result<(), String> {
        match seen {
            Seen::Applied { index, command, outcome } if outcome.wrote => {
                // A session that gives something back over its own stream knows; it names its epoch.
                let is_given_back = match command {
                    Some(Command::Unlock(unlock)) => unlock.epoch != 0,
                    Some(Command::Leave(_)) => true,
                    _ => false,
                };
                let turns = self.turns.applied(outcome.revision, &context.reference.model);
                let ends: Vec<Turn> = turns.iter().filter(|turn| !turn.ended.is_empty()).cloned().collect();
                if !ends.is_empty() {
                    self.ends.insert(*index, (is_given_back, ends));
                }
            }
            Seen::Died { member, .. } => self.open.retain(|(of, _), _| of != member),
            Seen::SessionAsked { member, stream, lease, is_open: true } => {
                self.open.insert((*member, *lease), *stream);
                self.changing.insert((*member, *lease, *stream));
            }
            Seen::SessionAsked { member, stream, lease, is_open: false }
                if self.open.get(&(*member, *lease)) == Some(stream) =>
            {
                self.changing.insert((*member, *lease, *stream));
                self.open.remove(&(*member, *lease));
            }
            Seen::Advanced { member, from, to } if from < to => self.advanced(*member, *from, *to, context),
            Seen::SessionNoticed { stream, notice: SessionNotice::Lost { name, token, .. } } => {
                let lost = (*stream, name.to_vec(), *token);
                if !self.due.remove(&lost) && !self.possible.remove(&lost) {
                    return Err(format!("stream {stream} is told that it lost {name:?} with token {token} just now"));
                }
            }
            Seen::Stepped { .. } => {
                self.possible.clear();
                self.changing.clear();
                if let Some((stream, name, token)) = self.due.pop_first() {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    return Err(format!("stream {stream} was never told that {name} with token {token} is lost"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Sessions {
    fn advanced(&mut self, member: MemberId, from: u64, to: u64, context: &Context<'_>) {
        let ends = self.ends.range(from + 1..=to);
        for (is_given_back, turn) in ends.flat_map(|(_, (given, turns))| turns.iter().map(move |turn| (*given, turn))) {
            for (token, lease) in &turn.ended {
                let is_it = |(of, changing, _): &&(_, _, _)| (*of, *changing) == (member, *lease);
                let changing: Vec<StreamId> = self.changing.iter().filter(is_it).map(|(.., stream)| *stream).collect();
                self.possible.extend(changing.iter().map(|stream| (*stream, turn.name.clone(), *token)));
                let Some(stream) = self.open.get(&(member, *lease)) else { continue };
                let key = [&turn.name[..], format!("/{lease:x}").as_bytes()].concat();
                let granted = context.reference.model.stay(&key, *token).and_then(|stay| stay.granted);
                let lost = (*stream, turn.name.clone(), *token);
                // A snapshot may have skipped both its beginning and its end.
                match granted.is_some_and(|granted| granted <= from) && changing.is_empty() && !is_given_back {
                    true => self.due.insert(lost),
                    false => self.possible.insert(lost),
                };
            }
        }
    }
}
