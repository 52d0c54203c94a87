//! Where a watch is. Pure: no IO, no clock.
//!
//! A watch knows the first revision that it has not delivered. When its stream breaks, it opens another one from that
//! revision on, at any member. The server repeats nothing that is older, and what it repeats all the same, because a
//! message was delivered just before the stream broke, is skipped here. So every change is delivered once, in order.

use crate::Revision;

/// The place of a watch in the history of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    next: Revision,
}

/// A message of the server, without what is in its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The first message of a stream, which says that the watch is in place.
    pub is_created: bool,
    /// The revision of the store when the message was made.
    pub revision: Revision,
    /// The revision of each event, in order. All events of one revision come in one message.
    pub events: &'a [Revision],
}

impl Cursor {
    /// `start`: the first revision that is wanted; 0 for the one after the store's present revision.
    pub fn new(start: Revision) -> Cursor {
        Cursor { next: start }
    }

    /// The first revision that was not delivered: the next stream starts here. 0 before it is known.
    pub fn next(self) -> Revision {
        self.next
    }

    /// Takes a message, and gives how many of its events were delivered before: they come first.
    pub fn take(&mut self, message: Message<'_>) -> usize {
        let delivered = message.events.partition_point(|revision| *revision < self.next);
        match message.events[delivered..].last() {
            Some(last) => self.next = last + 1,
            // A watch that was created without a start begins after this revision. A message without events says that
            // nothing up to this revision is still to come, but one that creates a watch says nothing of its history.
            None if !message.is_created || self.next == 0 => self.next = self.next.max(message.revision + 1),
            None => {}
        }
        delivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The revisions of a store, and of the events in each.
    const HISTORY: [(Revision, usize); 6] = [(1, 1), (2, 0), (3, 2), (4, 1), (5, 0), (6, 1)];

    #[derive(Clone)]
    struct World {
        cursor: Cursor,
        /// The next revision that the open stream sends, if one is open.
        stream: Option<Revision>,
        /// The last revision of the member that serves.
        present: Revision,
        /// The first revision that the watch has to deliver, once it is known.
        first: Option<Revision>,
        delivered: Vec<Revision>,
        breaks: u32,
    }

    impl World {
        fn hear(&mut self, message: Message<'_>) {
            let delivered = self.cursor.take(message);
            self.delivered.extend(&message.events[delivered..]);
        }

        /// Everything that can happen next.
        fn successors(&self) -> Vec<World> {
            let mut successors = Vec::new();
            let mut add = |change: &dyn Fn(&mut World)| {
                let mut next = self.clone();
                change(&mut next);
                successors.push(next);
            };
            let last = HISTORY.len() as Revision;
            if self.present < last {
                add(&|world| world.present += 1);
            }
            match self.stream {
                None => add(&|world| {
                    let start = world.cursor.next();
                    let start = if start == 0 { world.present + 1 } else { start };
                    (world.stream, world.first) = (Some(start), world.first.or(Some(start)));
                    world.hear(Message { is_created: true, revision: world.present, events: &[] });
                }),
                Some(from) => {
                    // A message has the events of as many revisions as the member likes.
                    for upto in from..=self.present {
                        let events = events(from, upto);
                        add(&|world| {
                            world.stream = Some(upto + 1);
                            if !events.is_empty() {
                                world.hear(Message { is_created: false, revision: world.present, events: &events });
                            }
                        });
                    }
                    if from > self.present {
                        add(&|world| world.hear(Message { is_created: false, revision: world.present, events: &[] }));
                    }
                    if self.breaks > 0 {
                        add(&|world| (world.stream, world.breaks) = (None, world.breaks - 1));
                        // The next member may be behind.
                        add(&|world| {
                            (world.stream, world.breaks) = (None, world.breaks - 1);
                            world.present = (world.present - 1).max(0);
                        });
                    }
                }
            }
            successors
        }
    }

    fn events(from: Revision, upto: Revision) -> Vec<Revision> {
        let within = HISTORY.iter().filter(|(revision, _)| (from..=upto).contains(revision));
        within.flat_map(|(revision, events)| vec![*revision; *events]).collect()
    }

    /// Every way in which messages, progress, breaks and members that are behind can follow each other.
    #[test]
    fn every_event_comes_once_and_in_order() {
        for start in 0..=7 {
            let (cursor, present, breaks) = (Cursor::new(start), 2, 2);
            let world = World { cursor, stream: None, present, first: None, delivered: Vec::new(), breaks };
            let mut seen = std::collections::BTreeSet::new();
            let (mut open, mut ends) = (vec![world], 0);
            while let Some(world) = open.pop() {
                let World { cursor, stream, present, first, delivered, breaks } = &world;
                let wanted = first.map_or_else(Vec::new, |first| events(first, HISTORY.len() as Revision));
                assert!(wanted.starts_with(delivered), "from {start}: {delivered:?} of {wanted:?}");
                ends += usize::from(cursor.next() > 6 && *delivered == wanted);
                if seen.insert((*cursor, *stream, *present, *first, delivered.clone(), *breaks)) {
                    open.extend(world.successors());
                }
            }
            assert!(ends > 0, "it comes to an end");
        }
    }

    #[test]
    fn a_watch_starts_where_it_was_asked_to_or_after_the_present() {
        let created = |revision| Message { is_created: true, revision, events: &[] };
        let mut cursor = Cursor::new(0);
        cursor.take(created(7));
        assert_eq!(cursor.next(), 8);
        cursor.take(created(9));
        assert_eq!(cursor.next(), 8, "what happened between two streams is still to come");
        let mut cursor = Cursor::new(3);
        cursor.take(created(7));
        assert_eq!(cursor.next(), 3);
        assert_eq!(cursor.take(Message { is_created: false, revision: 7, events: &[3, 3, 5] }), 0);
        assert_eq!(cursor.take(Message { is_created: false, revision: 7, events: &[5, 6] }), 1);
        cursor.take(Message { is_created: false, revision: 9, events: &[] });
        assert_eq!(cursor.next(), 10);
        let mut future = Cursor::new(100);
        future.take(Message { is_created: false, revision: 9, events: &[] });
        assert_eq!(future.next(), 100);
    }
}
