//! Exchanges whose lanes are at different instructions.
//!
//! PTX asks the lanes of a mask for the same operation with the same qualifiers and the same
//! mask, not for the same instruction. Compilers use this: they unroll loops around
//! exchanges, or place one in each branch.

use super::memory::lanes;
use super::warp::{Bases, State, Warp};
use crate::program::{Ext, Op, Program, Reg, Row32, Row64};

/// Rows of the frame in which lanes of different frames exchange: sources, then the result.
const ROWS: [u32; 4] = [0, 1, 2, 3];
/// Its predicates: a source and a result.
const PREDICATES: [u32; 2] = [0, 1];

/// Lanes of a waiting fragment that take part in an exchange.
struct Party<'p> {
    /// The fragment's index in [`Warp::others`].
    at: usize,
    lanes: u32,
    ext: &'p Ext,
}

/// The registers that an exchange reads and writes.
struct Registers {
    sources: [Option<Reg>; 3],
    /// Whether the source is negated.
    negate: bool,
    results: [Option<Reg>; 2],
    mask: u32,
}

fn registers(ext: &Ext) -> Option<Registers> {
    let (sources, results, mask) = match *ext {
        Ext::Shfl {
            d,
            p,
            a,
            b,
            c,
            mask,
            ..
        } => (
            [a, b, c].map(|row| Some(Reg::R32(row))),
            [Some(Reg::R32(d)), p.map(Reg::P)],
            mask,
        ),
        Ext::Vote { d, p, mask, .. } => ([Some(Reg::P(p)), None, None], [Some(d), None], mask),
        Ext::Match { d, p, a, mask, .. } => (
            [Some(a), None, None],
            [Some(Reg::R32(d)), p.map(Reg::P)],
            mask,
        ),
        Ext::Redux { d, a, mask, .. } => (
            [Some(Reg::R32(a)), None, None],
            [Some(Reg::R32(d)), None],
            mask,
        ),
        Ext::Elect { d, p, mask } => ([None; 3], [Some(Reg::R32(d)), Some(Reg::P(p))], mask),
        _ => return None,
    };
    Some(Registers {
        sources,
        negate: matches!(ext, Ext::Vote { negate: true, .. }),
        results,
        mask,
    })
}

/// The exchange with the rows [`ROWS`] and [`PREDICATES`], whatever its own are.
fn renamed(ext: &Ext) -> Option<Ext> {
    let ([a, b, c, d], [source, result]) = (ROWS, PREDICATES);
    let mask = 0;
    Some(match *ext {
        Ext::Shfl { mode, .. } => Ext::Shfl {
            mode,
            d,
            p: Some(result),
            a,
            b,
            c,
            mask,
        },
        Ext::Vote { mode, d: of, .. } => Ext::Vote {
            mode,
            d: match of {
                Reg::P(_) => Reg::P(result),
                _ => Reg::R32(d),
            },
            p: source,
            negate: false,
            mask,
        },
        Ext::Match { all, a: of, .. } => Ext::Match {
            all,
            d,
            p: Some(result),
            a: match of {
                Reg::R64(_) => Reg::R64(a),
                _ => Reg::R32(a),
            },
            mask,
        },
        Ext::Redux { op, .. } => Ext::Redux { op, d, a, mask },
        Ext::Elect { .. } => Ext::Elect { d, p: result, mask },
        _ => return None,
    })
}

/// Whether both are the same operation with the same qualifiers.
fn alike(x: &Ext, y: &Ext) -> bool {
    match (x, y) {
        (Ext::Shfl { mode: x, .. }, Ext::Shfl { mode: y, .. }) => x == y,
        (Ext::Vote { mode: x, .. }, Ext::Vote { mode: y, .. }) => x == y,
        (Ext::Match { all: x, a, .. }, Ext::Match { all: y, a: b, .. }) => {
            x == y && std::mem::discriminant(a) == std::mem::discriminant(b)
        }
        (Ext::Redux { op: x, .. }, Ext::Redux { op: y, .. }) => x == y,
        (Ext::Elect { .. }, Ext::Elect { .. }) => true,
        _ => false,
    }
}

/// The lanes of `mask` whose group is `group`.
fn members(groups: &[u32; 32], mask: u32, group: u32) -> u32 {
    lanes(mask)
        .filter(|&l| groups[l] == group)
        .fold(0, |m, l| m | 1 << l)
}

/// The operation other than arithmetic at `pc`.
fn at(program: &Program, pc: u32) -> Option<&Ext> {
    let inst = program.code.get(pc as usize)?;
    program
        .ext
        .get(inst.a as usize)
        .filter(|_| inst.op == Op::Ext)
}

impl Warp {
    /// Lanes `waiting` begin to wait at `ext`. If they complete groups together with
    /// fragments that wait at other instructions, executes it for these groups.
    #[cold]
    pub(super) fn meet_apart(
        &mut self,
        program: &Program,
        ext: &Ext,
        groups: &[u32; 32],
        waiting: u32,
    ) {
        if !self.others.iter().any(|other| other.state == State::Sync) {
            return;
        }
        if self.run.state == State::Sync {
            self.split_off(self.run.mask, self.run.pc, State::Sync);
        }
        let mut left = waiting;
        while left != 0 {
            let group = groups[left.trailing_zeros() as usize];
            left &= !members(groups, left, group);
            let parties: Vec<Party<'_>> = (0..self.others.len())
                .filter_map(|n| self.party(program, n, ext, group))
                .collect();
            let all = parties.iter().fold(0, |all, party| all | party.lanes);
            if group & self.live & !all == 0 {
                self.exchange_apart(ext, group, all, &parties);
            }
        }
    }

    /// The lanes of the waiting fragment `n` that wait at an operation like `ext` with the
    /// mask `group`.
    fn party<'p>(
        &self,
        program: &'p Program,
        n: usize,
        ext: &Ext,
        group: u32,
    ) -> Option<Party<'p>> {
        let other = self.others.get(n).filter(|f| f.state == State::Sync)?;
        let ext = at(program, other.pc).filter(|at| alike(at, ext))?;
        let row = other.bases.r32 + registers(ext)?.mask;
        let groups = &self.r32.get(row as usize)?.0;
        let lanes = members(groups, other.mask, group);
        (lanes != 0).then_some(Party { at: n, lanes, ext })
    }

    /// Executes `ext` for the lanes `all` of a complete group in a frame of their own, and
    /// lets them continue.
    fn exchange_apart(&mut self, ext: &Ext, group: u32, all: u32, parties: &[Party<'_>]) {
        let Some((own, rows)) = renamed(ext).and_then(|own| Some((registers(&own)?, own))) else {
            return;
        };
        let (bases, ends) = (
            self.run.bases,
            [self.r32.len(), self.r64.len(), self.p.len()],
        );
        let frame = Bases {
            r32: ends[0] as u32,
            r64: ends[1] as u32,
            p: ends[2] as u32,
            ..bases
        };
        self.r32.resize(ends[0] + ROWS.len(), Row32([0; 32]));
        self.r64.resize(ends[1] + 1, Row64([0; 32]));
        self.p.resize(ends[2] + PREDICATES.len(), 0);
        for (party, theirs, there) in self.frames(parties) {
            for (from, to) in theirs.sources.into_iter().zip(own.sources) {
                let (Some(from), Some(to)) = (from, to) else {
                    continue;
                };
                self.run.bases = there;
                let values = self.read(from).map(|v| v ^ u64::from(theirs.negate));
                self.run.bases = frame;
                self.write(to, &values, party.lanes);
            }
        }
        self.run.bases = frame;
        self.carry_out(&rows, &[group; 32], all);
        for (party, theirs, there) in self.frames(parties) {
            for (to, from) in theirs.results.into_iter().zip(own.results) {
                let (Some(to), Some(from)) = (to, from) else {
                    continue;
                };
                self.run.bases = frame;
                let values = self.read(from);
                self.run.bases = there;
                self.write(to, &values, party.lanes);
            }
        }
        self.run.bases = bases;
        self.r32.truncate(ends[0]);
        self.r64.truncate(ends[1]);
        self.p.truncate(ends[2]);
        for party in parties {
            self.pass(party.at, party.lanes);
        }
    }

    /// The parties with their registers and frames.
    fn frames<'p>(&self, parties: &'p [Party<'p>]) -> Vec<(&'p Party<'p>, Registers, Bases)> {
        parties
            .iter()
            .filter_map(|party| {
                let bases = self.others.get(party.at)?.bases;
                Some((party, registers(party.ext)?, bases))
            })
            .collect()
    }

    /// Lanes `mask` of a waiting fragment continue with the next instruction.
    fn pass(&mut self, at: usize, mask: u32) {
        let Some(other) = self.others.get_mut(at) else {
            return;
        };
        let mut rest = other.clone();
        rest.mask &= !mask;
        other.mask = mask;
        other.pc += 1;
        other.state = State::Run;
        if rest.mask != 0 {
            self.others.push(rest);
        }
    }
}
