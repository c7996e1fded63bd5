//! Conditional nodes of graphs: bodies whose execution depends on a value that kernels set (CUDA
//! Driver API, Graph Management).

use std::ops::Range;

use paragpu_protocol::edge::Dependency;
use paragpu_protocol::status::Status;

use crate::{Error, GraphNode, Result, Work};

/// Maximum nesting of conditional nodes.
const MAX_NESTING: usize = 64;

/// How the value selects a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionalKind {
    /// The first body runs if the value is not 0, otherwise the second.
    If,
    /// The body repeats while the value is not 0.
    While,
    /// The value is the index of the body that runs.
    Switch,
}

/// A conditional node, which runs some of the nodes after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditional {
    /// The handle of the value in kernels.
    pub condition: u64,
    /// How the value selects a body.
    pub kind: ConditionalKind,
    /// Its initial value.
    pub value: u32,
    /// Whether each launch resets the value to it.
    pub assigns: bool,
    /// The number of following nodes in each body, including nested bodies.
    pub bodies: Vec<u32>,
}

impl Conditional {
    /// The index of the body that a value selects.
    #[must_use]
    pub fn chosen(&self, value: u32) -> Option<usize> {
        let body = match (self.kind, value) {
            (ConditionalKind::If, 0) => 1,
            (ConditionalKind::While, 0) => return None,
            (ConditionalKind::If | ConditionalKind::While, _) => 0,
            (ConditionalKind::Switch, value) => usize::try_from(value).ok()?,
        };
        (body < self.bodies.len()).then_some(body)
    }

    fn has_its_bodies(&self) -> bool {
        match self.kind {
            ConditionalKind::If => matches!(self.bodies.len(), 1 | 2),
            ConditionalKind::While => self.bodies.len() == 1,
            ConditionalKind::Switch => !self.bodies.is_empty(),
        }
    }
}

/// The bodies of a graph's conditional nodes.
#[derive(Debug, Default)]
pub struct Bodies {
    /// The nodes of each body, including nested bodies.
    pub ranges: Vec<Range<usize>>,
    /// The body of each node; `None` for the graph itself.
    pub of: Vec<Option<usize>>,
    /// The index of each conditional node's first body; its other bodies follow.
    pub first: Vec<Option<usize>>,
}

fn refused(number: usize, why: &str) -> Error {
    Error::new(Status::INVALID_VALUE, format!("node {number}: {why}"))
}

impl Bodies {
    /// Finds and checks them.
    ///
    /// # Errors
    /// `INVALID_VALUE` for bodies that overlap or exceed the graph, contain nodes that
    /// bodies must not have, or depend on nodes outside; `NOT_SUPPORTED` for too deep
    /// nesting.
    pub fn of(nodes: &[GraphNode]) -> Result<Self> {
        let mut found = Self::default();
        // A stack of the bodies that contain or follow the node, the innermost last, with
        // their ends and nesting depths.
        let mut open: Vec<(usize, usize, usize)> = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            while open.last().is_some_and(|(_, end, _)| *end <= number) {
                open.pop();
            }
            let (body, end, depth) = match open.last() {
                Some(&(body, end, depth)) => (Some(body), end, depth),
                None => (None, nodes.len(), 0),
            };
            found.check(number, node, body)?;
            found.of.push(body);
            found.first.push(None);
            let Work::Conditional(conditional) = &node.work else {
                continue;
            };
            if !conditional.has_its_bodies() {
                return Err(refused(number, "not as many bodies as its kind has"));
            }
            if depth >= MAX_NESTING {
                let why = "conditional nodes around each other";
                return Err(Error::new(Status::NOT_SUPPORTED, why));
            }
            let (first, mut start) = (found.ranges.len(), number + 1);
            for size in &conditional.bodies {
                let size = usize::try_from(*size).unwrap_or(usize::MAX);
                let stop = start.checked_add(size).filter(|stop| *stop <= end);
                let stop = stop.ok_or_else(|| refused(number, "a body ends outside"))?;
                found.ranges.push(start..stop);
                start = stop;
            }
            if let Some(place) = found.first.last_mut() {
                *place = Some(first);
            }
            let bodies = found.ranges.iter().enumerate().skip(first);
            let bodies: Vec<_> = bodies
                .map(|(body, range)| (body, range.end, depth + 1))
                .collect();
            open.extend(bodies.into_iter().rev());
        }
        Ok(found)
    }

    fn check(&self, number: usize, node: &GraphNode, body: Option<usize>) -> Result<()> {
        let together = |before: &Dependency| self.of.get(before.node as usize) == Some(&body);
        if !node.after.iter().all(together) {
            return Err(refused(number, "it depends on one that is not before it"));
        }
        let fits = matches!(
            node.work,
            Work::Empty
                | Work::Launch(_)
                | Work::Copy { .. }
                | Work::CopyRect { .. }
                | Work::Memset(_)
                | Work::Conditional(_)
        );
        match body.is_none() || fits {
            true => Ok(()),
            false => Err(refused(number, "a body cannot do this")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(work: Work<'static>, after: &[u32]) -> GraphNode {
        GraphNode {
            work,
            after: after.iter().copied().map(Dependency::from).collect(),
        }
    }

    fn conditional(kind: ConditionalKind, bodies: &[u32]) -> GraphNode {
        let work = Conditional {
            condition: 1,
            kind,
            value: 0,
            assigns: false,
            bodies: bodies.to_vec(),
        };
        node(Work::Conditional(work), &[])
    }

    fn empty(after: &[u32]) -> GraphNode {
        node(Work::Empty, after)
    }

    #[test]
    fn bodies_are_the_nodes_behind() {
        use ConditionalKind::{If, While};
        let nodes = [
            empty(&[]),
            conditional(If, &[4, 1]),
            empty(&[]),
            conditional(While, &[1]),
            empty(&[]),
            empty(&[2, 3]),
            empty(&[]),
            empty(&[1]),
        ];
        let found = Bodies::of(&nodes).unwrap();
        assert_eq!(found.ranges, [2..6, 6..7, 4..5]);
        let of = [
            None,
            None,
            Some(0),
            Some(0),
            Some(2),
            Some(0),
            Some(1),
            None,
        ];
        assert_eq!(found.of, of);
        assert_eq!((found.first[1], found.first[3]), (Some(0), Some(2)));
    }

    #[test]
    fn bodies_that_cannot_be_are_refused() {
        use ConditionalKind::{If, Switch, While};
        let cases = [
            // Ends beyond the graph, beyond the enclosing body, beyond the integer range.
            vec![conditional(While, &[1])],
            vec![
                conditional(While, &[1]),
                conditional(While, &[1]),
                empty(&[]),
            ],
            vec![conditional(Switch, &[1, u32::MAX]), empty(&[])],
            // Too many bodies, or none.
            vec![conditional(While, &[0, 0])],
            vec![conditional(If, &[0, 0, 0])],
            vec![conditional(Switch, &[])],
            // Into a body, out of one, and from one to the next.
            vec![empty(&[]), conditional(While, &[1]), empty(&[0])],
            vec![conditional(While, &[1]), empty(&[]), empty(&[1])],
            vec![conditional(If, &[1, 1]), empty(&[]), empty(&[1])],
            vec![
                conditional(While, &[1]),
                node(Work::EventWait(crate::EventId(1)), &[]),
            ],
            vec![empty(&[0])],
        ];
        for (number, nodes) in cases.iter().enumerate() {
            let refused = Bodies::of(nodes).err().map(|error| error.status);
            assert_eq!(refused, Some(Status::INVALID_VALUE), "case {number}");
        }
    }

    #[test]
    fn nesting_ends() {
        let nested = |depth: u32| {
            let sizes = (0..depth).rev();
            let nodes: Vec<_> = sizes
                .map(|inside| conditional(ConditionalKind::While, &[inside]))
                .collect();
            Bodies::of(&nodes).map(drop).map_err(|error| error.status)
        };
        let most = u32::try_from(MAX_NESTING).unwrap();
        assert_eq!(nested(most), Ok(()));
        assert_eq!(nested(most + 1), Err(Status::NOT_SUPPORTED));
        assert_eq!(nested(1 << 16), Err(Status::NOT_SUPPORTED));
        // Siblings do not count as nesting.
        let beside = vec![1; 1000];
        let mut nodes = vec![conditional(ConditionalKind::Switch, &beside)];
        nodes.resize_with(1001, || conditional(ConditionalKind::While, &[0]));
        assert!(Bodies::of(&nodes).is_ok());
    }

    #[test]
    fn a_value_chooses() {
        let of = |kind, bodies: &[u32], value| {
            let made = Conditional {
                condition: 1,
                kind,
                value: 0,
                assigns: false,
                bodies: bodies.to_vec(),
            };
            made.chosen(value)
        };
        use ConditionalKind::{If, Switch, While};
        assert_eq!((of(If, &[1], 5), of(If, &[1], 0)), (Some(0), None));
        assert_eq!(of(If, &[1, 1], 0), Some(1));
        assert_eq!((of(While, &[1], 1), of(While, &[1], 0)), (Some(0), None));
        assert_eq!(
            (of(Switch, &[1, 1], 1), of(Switch, &[1, 1], 2)),
            (Some(1), None)
        );
    }
}
