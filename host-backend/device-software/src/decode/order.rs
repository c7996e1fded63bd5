//! The order of a function's blocks in its code.
//!
//! Diverged lanes run lowest instruction first ([`crate::exec`]). So they reconverge where
//! their paths do if each block is placed after all its predecessors, and the code after a
//! loop is placed after the whole loop. Compilers often place blocks differently, such as a
//! loop's last block before its first. GPUs reconverge there all the same, and programs
//! without `.sync` rely on it. The blocks are therefore arranged in that order: a reverse
//! postorder of the control flow in which a walk that enters a loop visits the code after
//! the loop first.

use crate::program::{Ext, Inst, Mark, Op, Program};

/// Maximum number of steps to find the order. Code that needs more stays unchanged.
const PATIENCE: usize = 1 << 24;

/// Maximum number of edges for each instruction of a function, above [`MANY_EDGES`]. Memory
/// for the order is then proportional to the code. Indexed branches that share a long list
/// would take far more.
const EDGES: usize = 4;

/// A number of edges that any function may have.
const MANY_EDGES: usize = 1 << 16;

/// A basic block, by positions in the function's code.
#[derive(Debug, Clone)]
struct Block {
    first: u32,
    end: u32,
    /// Where its edges begin and end.
    edges: (u32, u32),
    /// The successor that follows without a branch.
    falls: Option<u32>,
}

/// The blocks of a function, and the edges between them. They take few bytes, because a
/// hostile function has a block for each instruction.
#[derive(Debug)]
struct Blocks {
    all: Vec<Block>,
    edges: Vec<u32>,
}

impl Blocks {
    /// The successors of a block.
    fn next(&self, block: u32) -> &[u32] {
        let (from, to) = self.all[block as usize].edges;
        &self.edges[from as usize..to as usize]
    }
}

/// A list of blocks for each block.
struct Lists {
    /// Where the list of each block begins, and where the last one ends.
    begins: Vec<u32>,
    entries: Vec<u32>,
}

impl Lists {
    fn of(&self, block: u32) -> &[u32] {
        let block = block as usize;
        &self.entries[self.begins[block] as usize..self.begins[block + 1] as usize]
    }
}

/// Arranges the blocks of the function that begins at `mark`. Its branches are already
/// resolved.
pub(super) fn arrange(program: &mut Program, mark: Mark) {
    let Some(blocks) = blocks(program, mark.code) else {
        return;
    };
    let Some(order) = order(&blocks) else {
        return;
    };
    if order.is_sorted() {
        return;
    }
    lay_out(program, mark, &blocks, &order);
}

/// The maximum number of edges of so many instructions or blocks.
fn most_edges(count: usize) -> usize {
    MANY_EDGES.saturating_add(count.saturating_mul(EDGES))
}

/// Where an instruction may continue: the targets of a branch, and whether the next
/// instruction may follow.
fn ways<'p>(program: &'p Program, inst: &Inst) -> Option<(&'p [u32], bool)> {
    if inst.op != Op::Ext {
        return None;
    }
    let guarded = inst.guard != 0;
    match program.ext.get(inst.a as usize)? {
        Ext::Bra { target } => Some((std::slice::from_ref(target), guarded)),
        // An index past the list falls through.
        Ext::BrxIdx { table, .. } => Some((program.targets(*table), true)),
        Ext::Ret | Ext::Exit | Ext::Trap => Some((&[], guarded)),
        _ => None,
    }
}

/// The blocks of a function; `None` if a branch leads out of it, or if it has too many edges.
fn blocks(program: &Program, start: usize) -> Option<Blocks> {
    let code = program.code.get(start..)?;
    let mut begins = vec![false; code.len() + 1];
    *begins.first_mut()? = true;
    let mut edges = most_edges(code.len());
    for (at, inst) in code.iter().enumerate() {
        if let Some((targets, _)) = ways(program, inst) {
            edges = edges.checked_sub(targets.len())?;
            *begins.get_mut(at + 1)? = true;
            for &target in targets {
                *begins.get_mut((target as usize).checked_sub(start)?)? = true;
            }
        }
    }
    let at = |position: usize| u32::try_from(position).ok();
    at(code.len())?;
    let firsts = (0..code.len()).filter(|&at| begins[at]).filter_map(at);
    let firsts: Vec<u32> = firsts.collect();
    drop(begins);
    let number = |at: u32| {
        firsts
            .binary_search(&at)
            .ok()
            .and_then(|n| u32::try_from(n).ok())
    };
    let mut all = Vec::with_capacity(firsts.len());
    let mut edges: Vec<u32> = Vec::with_capacity(firsts.len());
    let mut next: Vec<u32> = Vec::new();
    for (n, &first) in firsts.iter().enumerate() {
        let end = firsts.get(n + 1).copied().or_else(|| at(code.len()))?;
        let (targets, falls) = ways(program, code.get(end as usize - 1)?).unwrap_or((&[], true));
        let falls = if falls { Some(number(end)?) } else { None };
        next.clear();
        for &target in targets {
            next.push(number(target - at(start)?)?);
        }
        next.extend(falls);
        next.sort_unstable();
        next.dedup();
        let from = at(edges.len())?;
        edges.extend(&next);
        all.push(Block {
            first,
            end,
            edges: (from, at(edges.len())?),
            falls,
        });
    }
    Some(Blocks { all, edges })
}

/// The result of a depth-first walk from the first block.
struct Walk {
    /// Blocks in the order in which the walk left them.
    left: Vec<u32>,
    /// Edges to a block that the walk has entered and not left: from, to.
    back: Vec<(u32, u32)>,
}

/// Walks along the edges. `next` returns a block's edge by number.
fn walk(count: usize, next: impl Fn(u32, usize) -> Option<u32>) -> Walk {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Entered,
        Left,
    }
    let mut seen = vec![Seen::No; count];
    let mut found = Walk {
        left: Vec::with_capacity(count),
        back: Vec::new(),
    };
    seen[0] = Seen::Entered;
    // Each block on the path, and the number of its edges that were followed.
    let mut path = vec![(0, 0_u32)];
    while let Some((block, followed)) = path.last_mut() {
        let block = *block;
        let Some(to) = next(block, *followed as usize) else {
            seen[block as usize] = Seen::Left;
            found.left.push(block);
            path.pop();
            continue;
        };
        *followed += 1;
        match seen[to as usize] {
            Seen::No => {
                seen[to as usize] = Seen::Entered;
                path.push((to, 0));
            }
            Seen::Entered => found.back.push((block, to)),
            Seen::Left => {}
        }
    }
    found
}

/// The predecessors of each block.
fn predecessors(blocks: &Blocks) -> Lists {
    let count = blocks.all.len();
    let mut begins = vec![0_u32; count + 1];
    for &to in &blocks.edges {
        begins[to as usize + 1] += 1;
    }
    for block in 0..count {
        begins[block + 1] += begins[block];
    }
    let mut entries = vec![0_u32; blocks.edges.len()];
    // Each list is filled from its end.
    let mut ends: Vec<u32> = begins[1..].to_vec();
    for from in (0_u32..).take(count) {
        for &to in blocks.next(from) {
            let end = &mut ends[to as usize];
            *end -= 1;
            entries[*end as usize] = from;
        }
    }
    Lists { begins, entries }
}

/// The blocks after each loop, by the loop's first block; `None` if finding them takes too
/// long.
fn follow(blocks: &Blocks) -> Option<Lists> {
    let count = blocks.all.len();
    let back = walk(count, |block, n| blocks.next(block).get(n).copied()).back;
    let before = predecessors(blocks);
    let mut patience = PATIENCE;
    let most = most_edges(count);
    let mut heads: Vec<u32> = back.iter().map(|&(_, head)| head).collect();
    heads.sort_unstable();
    heads.dedup();
    let mut begins = vec![0_u32; count + 1];
    let mut entries: Vec<u32> = Vec::new();
    let mut inside = vec![u32::MAX; count];
    let (mut members, mut ends): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    for head in heads {
        members.clear();
        members.push(head);
        inside[head as usize] = head;
        let lasts = back.iter().filter(|&&(_, to)| to == head);
        let mut open: Vec<u32> = lasts.map(|&(from, _)| from).collect();
        patience = patience.checked_sub(back.len())?;
        while let Some(block) = open.pop() {
            if inside[block as usize] == head {
                continue;
            }
            inside[block as usize] = head;
            members.push(block);
            let before = before.of(block);
            patience = patience.checked_sub(1 + before.len())?;
            open.extend(before);
        }
        ends.clear();
        for &block in &members {
            let out = blocks.next(block).iter();
            ends.extend(out.filter(|&&to| inside[to as usize] != head));
        }
        ends.sort_unstable();
        ends.dedup();
        entries.extend(&ends);
        if entries.len() > most {
            return None;
        }
        begins[head as usize + 1] = u32::try_from(entries.len()).ok()?;
    }
    for block in 0..count {
        begins[block + 1] = begins[block + 1].max(begins[block]);
    }
    Some(Lists { begins, entries })
}

/// The new order of the blocks; `None` if finding it takes too long.
fn order(blocks: &Blocks) -> Option<Vec<u32>> {
    let follow = follow(blocks)?;
    // Blocks visited first are placed last: those after a loop, then higher ones.
    let arranged = walk(blocks.all.len(), |block, n| {
        let (after, next) = (follow.of(block), blocks.next(block));
        match n.checked_sub(after.len()) {
            None => after.iter().rev().nth(n).copied(),
            Some(n) => next.iter().rev().nth(n).copied(),
        }
    });
    let mut order = arranged.left;
    order.reverse();
    // Unreachable blocks come last.
    let mut placed = vec![false; blocks.all.len()];
    order
        .iter()
        .for_each(|&block| placed[block as usize] = true);
    let numbers = (0_u32..).take(placed.len());
    order.extend(numbers.filter(|&block| !placed[block as usize]));
    Some(order)
}

/// Writes the blocks in a new order, and adds branches where they no longer fall through.
fn lay_out(program: &mut Program, mark: Mark, blocks: &Blocks, order: &[u32]) {
    let start = mark.code;
    let code = program.code.split_off(start);
    let lines = program.lines.split_off(start);
    let mut moved = vec![0_u32; code.len() + 1];
    let position = |program: &Program| u32::try_from(program.code.len()).unwrap_or(u32::MAX);
    for (n, &number) in order.iter().enumerate() {
        let block = &blocks.all[number as usize];
        let (first, end) = (block.first as usize, block.end as usize);
        moved[first] = position(program);
        program.code.extend_from_slice(&code[first..end]);
        program.lines.extend_from_slice(&lines[first..end]);
        let next = order.get(n + 1).copied();
        if let Some(falls) = block.falls
            && next != Some(falls)
        {
            let line = lines[end - 1];
            let target =
                u32::try_from(start).unwrap_or(u32::MAX) + blocks.all[falls as usize].first;
            program.code.push(Inst {
                op: Op::Ext,
                guard: 0,
                d: 0,
                a: u32::try_from(program.ext.len()).unwrap_or(u32::MAX),
                b: 0,
                c: 0,
                imm: 0,
            });
            program.ext.push(Ext::Bra { target });
            program.lines.push(line);
        } else if block.falls.is_none()
            && let &[only] = blocks.next(number)
            && next == Some(only)
        {
            // Its branch leads to the block that now follows.
            program.code.pop();
            program.lines.pop();
        }
    }
    let there = |target: &mut u32| {
        if let Some(&to) = (*target as usize)
            .checked_sub(start)
            .and_then(|at| moved.get(at))
        {
            *target = to;
        }
    };
    program.targets_from(mark).for_each(there);
}
