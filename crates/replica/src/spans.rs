//! Spans of keys, and which of them hold a key.
//!
//! A balanced tree (AVL) of spans in the order of their first key. Every node knows the furthest end within its subtree,
//! so a search leaves out all subtrees that end before the key. Each span is stored once, however much it overlaps
//! with others: memory is linear. To add or to remove one costs the depth of the tree; to find those that hold a key
//! costs at most that depth for each of them. The shape follows from the spans alone and from the order in which they
//! came, so it is the same in every run.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use bytes::Bytes;

/// The first key, and the first one behind the last; None = there is no end.
pub(crate) type Span = (Bytes, Option<Bytes>);

/// What is filed under spans. A span is there as long as something is filed under it.
pub(crate) struct Spans<T> {
    root: Link<T>,
}

type Link<T> = Option<Box<Node<T>>>;

struct Node<T> {
    span: Span,
    filed: BTreeSet<T>,
    /// The furthest end of this span and of all in its subtree; None = there is no end.
    furthest: Option<Bytes>,
    height: u8,
    left: Link<T>,
    right: Link<T>,
}

impl<T> Default for Spans<T> {
    fn default() -> Spans<T> {
        Spans { root: None }
    }
}

impl<T: Ord + Copy> Spans<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    pub(crate) fn insert(&mut self, span: Span, value: T) {
        insert(&mut self.root, span, value);
    }

    pub(crate) fn remove(&mut self, span: &Span, value: T) {
        remove(&mut self.root, span, value);
    }

    /// All that is filed under spans that hold this key.
    pub(crate) fn find(&self, key: &[u8], found: &mut Vec<T>) {
        find(&self.root, key, found);
    }
}

fn insert<T: Ord>(link: &mut Link<T>, span: Span, value: T) {
    let Some(node) = link else {
        let furthest = span.1.clone();
        let filed = BTreeSet::from([value]);
        *link = Some(Box::new(Node { span, filed, furthest, height: 1, left: None, right: None }));
        return;
    };
    match span.cmp(&node.span) {
        Ordering::Less => insert(&mut node.left, span, value),
        Ordering::Greater => insert(&mut node.right, span, value),
        Ordering::Equal => {
            node.filed.insert(value);
            return;
        }
    }
    balance(link);
}

fn remove<T: Ord>(link: &mut Link<T>, span: &Span, value: T) {
    let Some(node) = link else { return };
    match span.cmp(&node.span) {
        Ordering::Less => remove(&mut node.left, span, value),
        Ordering::Greater => remove(&mut node.right, span, value),
        Ordering::Equal => {
            node.filed.remove(&value);
            if !node.filed.is_empty() {
                return;
            }
            *link = match (node.left.take(), node.right.take()) {
                (None, only) | (only, None) => only,
                (left, mut right) => {
                    let mut next = take_first(&mut right);
                    if let Some(next) = &mut next {
                        (next.left, next.right) = (left, right);
                    }
                    next
                }
            };
        }
    }
    balance(link);
}

fn take_first<T>(link: &mut Link<T>) -> Link<T> {
    if let Some(node) = link
        && node.left.is_some()
    {
        let first = take_first(&mut node.left);
        balance(link);
        return first;
    }
    let mut first = link.take();
    *link = first.as_mut().and_then(|first| first.right.take());
    first
}

fn find<T: Copy>(link: &Link<T>, key: &[u8], found: &mut Vec<T>) {
    let Some(node) = link.as_ref().filter(|node| is_before(key, &node.furthest)) else { return };
    find(&node.left, key, found);
    if node.span.0 <= key {
        if is_before(key, &node.span.1) {
            found.extend(&node.filed);
        }
        find(&node.right, key, found);
    }
}

fn is_before(key: &[u8], end: &Option<Bytes>) -> bool {
    end.as_ref().is_none_or(|end| key < &end[..])
}

fn height<T>(link: &Link<T>) -> u8 {
    link.as_ref().map_or(0, |node| node.height)
}

impl<T> Node<T> {
    /// Looks at its children anew.
    fn update(&mut self) {
        self.height = 1 + height(&self.left).max(height(&self.right));
        let mut furthest = &self.span.1;
        for child in [&self.left, &self.right].into_iter().flatten() {
            if furthest.as_ref().is_some_and(|end| is_before(end, &child.furthest)) {
                furthest = &child.furthest;
            }
        }
        self.furthest = furthest.clone();
    }
}

/// One of the children may have grown or shrunk by one level.
fn balance<T>(link: &mut Link<T>) {
    let Some(node) = link else { return };
    let (left, right) = (height(&node.left), height(&node.right));
    if left > right + 1 {
        if node.left.as_ref().is_some_and(|left| height(&left.left) < height(&left.right)) {
            turn_left(&mut node.left);
        }
        turn_right(link);
    } else if right > left + 1 {
        if node.right.as_ref().is_some_and(|right| height(&right.right) < height(&right.left)) {
            turn_right(&mut node.right);
        }
        turn_left(link);
    } else {
        node.update();
    }
}

/// The left child takes its parent's place.
fn turn_right<T>(link: &mut Link<T>) {
    let Some(mut parent) = link.take() else { return };
    let Some(mut child) = parent.left.take() else { return *link = Some(parent) };
    parent.left = child.right.take();
    parent.update();
    child.right = Some(parent);
    child.update();
    *link = Some(child);
}

fn turn_left<T>(link: &mut Link<T>) {
    let Some(mut parent) = link.take() else { return };
    let Some(mut child) = parent.right.take() else { return *link = Some(parent) };
    parent.right = child.left.take();
    parent.update();
    child.left = Some(parent);
    child.update();
    *link = Some(child);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of nodes, if heights, ends and order are as they must be.
    fn check(link: &Link<u64>) -> usize {
        let Some(node) = link else { return 0 };
        let counted = check(&node.left) + check(&node.right) + 1;
        let (left, right) = (height(&node.left), height(&node.right));
        assert!(left.abs_diff(right) <= 1 && node.height == 1 + left.max(right), "out of balance");
        let children = || [&node.left, &node.right].into_iter().flatten();
        let ends = || children().map(|child| &child.furthest).chain([&node.span.1]);
        let furthest = if ends().any(Option::is_none) { None } else { ends().max().cloned().flatten() };
        assert_eq!(node.furthest, furthest);
        assert!(node.left.as_ref().is_none_or(|left| left.span < node.span));
        assert!(node.right.as_ref().is_none_or(|right| right.span > node.span));
        counted
    }

    /// How many nodes a search looks at.
    fn looked_at(link: &Link<u64>, key: &[u8]) -> usize {
        let Some(node) = link.as_ref().filter(|node| is_before(key, &node.furthest)) else { return 1 };
        let right = if node.span.0 <= key { looked_at(&node.right, key) } else { 0 };
        1 + looked_at(&node.left, key) + right
    }

    fn generator(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        }
    }

    fn holds(span: &Span, key: &[u8]) -> bool {
        span.0 <= key && is_before(key, &span.1)
    }

    /// Against asking every span in turn, with spans that are drawn from few and from many keys.
    #[test]
    fn the_tree_agrees_with_a_plain_search() {
        for (seed, keys) in [(1, 6), (2, 50), (3, 100_000)] {
            let mut next = generator(seed);
            let mut spans = Spans::default();
            let mut live: Vec<(Span, u64)> = Vec::new();
            let key = |number: u64| Bytes::from(format!("{number:x}"));
            for round in 0..3000u64 {
                // It grows and shrinks in turns.
                let shrinks = if round / 500 % 2 == 0 { 3 } else { 7 };
                if next(10) < shrinks && !live.is_empty() {
                    let (span, value) = live.swap_remove(next(live.len() as u64) as usize);
                    spans.remove(&span, value);
                } else {
                    let from = key(next(keys));
                    let to = if next(4) == 0 { None } else { Some(key(next(keys))) };
                    let value = next(5) + 10 * round;
                    spans.insert((from.clone(), to.clone()), value);
                    live.push(((from, to), value));
                }
                let at = key(next(keys));
                let mut found = Vec::new();
                spans.find(&at, &mut found);
                found.sort_unstable();
                let mut expected: Vec<_> =
                    live.iter().filter(|(span, _)| holds(span, &at)).map(|(_, value)| *value).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "seed {seed}, round {round}");
                let mut distinct: Vec<_> = live.iter().map(|(span, _)| span).collect();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(check(&spans.root), distinct.len(), "a span is stored once");
            }
            for (span, value) in live {
                spans.remove(&span, value);
            }
            assert!(spans.is_empty());
        }
    }

    /// A search looks at no more than the depth of the tree for each span that it finds, and one more.
    #[test]
    fn a_search_leaves_out_what_ends_before() {
        let key = |number: u64| Bytes::from(format!("{number:08}"));
        let mut from_key = Spans::default();
        let mut apart = Spans::default();
        for number in 0..10_000 {
            from_key.insert((key(number), None), number);
            apart.insert((key(number), Some(key(number + 1))), number);
        }
        assert_eq!((check(&from_key.root), check(&apart.root)), (10_000, 10_000));
        let depth = usize::from(height(&apart.root));
        assert!(depth <= 20, "{depth}");
        for at in [0, 1, 77, 5000, 9999] {
            assert!(looked_at(&apart.root, &key(at)) <= 4 * depth);
            assert!(looked_at(&from_key.root, &key(at)) <= 2 * (at as usize + 1) + 2 * depth);
        }
    }

    #[test]
    fn a_span_without_keys_holds_none() {
        let mut spans = Spans::default();
        spans.insert((Bytes::from("b"), Some(Bytes::from("a"))), 1u64);
        spans.insert((Bytes::from("b"), Some(Bytes::from("b"))), 2u64);
        for key in ["a", "b", "c"] {
            let mut found = Vec::new();
            spans.find(key.as_bytes(), &mut found);
            assert!(found.is_empty());
        }
        spans.remove(&(Bytes::from("b"), Some(Bytes::from("a"))), 1);
        spans.remove(&(Bytes::from("b"), Some(Bytes::from("b"))), 2);
        assert!(spans.is_empty());
    }
}
