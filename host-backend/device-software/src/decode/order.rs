//! The order of a function's blocks in its code.
//!
//! Diverged lanes run lowest instruction first ([`crate::exec`]). So they reconverge where
//! their paths do if each block is placed after all its predecessors, and the code after a
//! loop is placed after the whole loop. Compilers often place blocks differently, such as a
//! loop's last block before its first. GPUs reconverge there all the same, and programs
//! without `.sync` rely on it. The blocks are therefore arranged in that order: a reverse
//! postorder of the control flow in which a walk that enters a loop visits the code after
//! the loop first.

use crate::program::{Ext, Inst, Op, Program};

/// Maximum number of steps to find the order. Code that needs more stays unchanged.
const PATIENCE: usize = 1 << 24;

/// A basic block, by positions in the function's code.
#[derive(Debug, Clone)]
struct Block {
    first: usize,
    end: usize,
    /// Its successors.
    next: Vec<usize>,
    /// The successor that follows without a branch.
    falls: Option<usize>,
}

/// Arranges the blocks of the code from `start` on, which is one function's. Its branches
/// are already resolved.
pub(super) fn arrange(program: &mut Program, start: u32) {
    let start = start as usize;
    let Some(blocks) = blocks(program, start) else {
        return;
    };
    let Some(order) = order(&blocks) else {
        return;
    };
    if order.is_sorted() {
        return;
    }
    lay_out(program, start, &blocks, &order);
}

/// Where an instruction may continue: the targets of a branch, and whether the next
/// instruction may follow.
fn ways(program: &Program, inst: &Inst) -> Option<(Vec<usize>, bool)> {
    if inst.op != Op::Ext {
        return None;
    }
    let guarded = inst.guard != 0;
    match program.ext.get(inst.a as usize)? {
        Ext::Bra { target } => Some((vec![*target as usize], guarded)),
        // An index past the list falls through.
        Ext::BrxIdx { targets, .. } => Some((targets.iter().map(|&t| t as usize).collect(), true)),
        Ext::Ret | Ext::Exit | Ext::Trap => Some((Vec::new(), guarded)),
        _ => None,
    }
}

/// The blocks of a function; `None` if a branch leads out of it.
fn blocks(program: &Program, start: usize) -> Option<Vec<Block>> {
    let code = program.code.get(start..)?;
    let mut begins = vec![false; code.len() + 1];
    *begins.first_mut()? = true;
    for (at, inst) in code.iter().enumerate() {
        if let Some((targets, _)) = ways(program, inst) {
            *begins.get_mut(at + 1)? = true;
            for target in targets {
                *begins.get_mut(target.checked_sub(start)?)? = true;
            }
        }
    }
    let firsts: Vec<usize> = (0..code.len()).filter(|&at| begins[at]).collect();
    let number = |at: usize| firsts.binary_search(&at).ok();
    let mut blocks = Vec::with_capacity(firsts.len());
    for (n, &first) in firsts.iter().enumerate() {
        let end = firsts.get(n + 1).copied().unwrap_or(code.len());
        let (targets, falls) =
            ways(program, code.get(end - 1)?).unwrap_or_else(|| (Vec::new(), true));
        let falls = if falls { Some(number(end)?) } else { None };
        let mut next: Vec<usize> = Vec::with_capacity(targets.len() + 1);
        for target in targets {
            next.push(number(target - start)?);
        }
        next.extend(falls);
        next.sort_unstable();
        next.dedup();
        blocks.push(Block {
            first,
            end,
            next,
            falls,
        });
    }
    Some(blocks)
}

/// The result of a depth-first walk from the first block.
struct Walk {
    /// Blocks in the order in which the walk left them.
    left: Vec<usize>,
    /// Edges to a block that the walk has entered and not left: from, to.
    back: Vec<(usize, usize)>,
}

fn walk(count: usize, next: impl Fn(usize) -> Vec<usize>) -> Walk {
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
    let mut path = vec![(0, next(0).into_iter())];
    while let Some((block, rest)) = path.last_mut() {
        let block = *block;
        let Some(to) = rest.next() else {
            seen[block] = Seen::Left;
            found.left.push(block);
            path.pop();
            continue;
        };
        match seen[to] {
            Seen::No => {
                seen[to] = Seen::Entered;
                path.push((to, next(to).into_iter()));
            }
            Seen::Entered => found.back.push((block, to)),
            Seen::Left => {}
        }
    }
    found
}

/// The new order of the blocks; `None` if finding it takes too long.
fn order(blocks: &[Block]) -> Option<Vec<usize>> {
    let plain = walk(blocks.len(), |block| blocks[block].next.clone());
    let mut before = vec![Vec::new(); blocks.len()];
    for (from, block) in blocks.iter().enumerate() {
        for &to in &block.next {
            before[to].push(from);
        }
    }
    // The blocks after each loop, by the loop's first block.
    let mut follow: Vec<Vec<usize>> = vec![Vec::new(); blocks.len()];
    let mut patience = PATIENCE;
    let mut heads: Vec<usize> = plain.back.iter().map(|&(_, head)| head).collect();
    heads.sort_unstable();
    heads.dedup();
    let mut inside = vec![usize::MAX; blocks.len()];
    for head in heads {
        let mut members = vec![head];
        inside[head] = head;
        let lasts = plain.back.iter().filter(|&&(_, to)| to == head);
        let mut open: Vec<usize> = lasts.map(|&(from, _)| from).collect();
        patience = patience.checked_sub(plain.back.len())?;
        while let Some(block) = open.pop() {
            if inside[block] == head {
                continue;
            }
            inside[block] = head;
            members.push(block);
            patience = patience.checked_sub(1 + before[block].len())?;
            open.extend(&before[block]);
        }
        let ends = members.iter().flat_map(|&block| &blocks[block].next);
        follow[head] = ends.copied().filter(|&to| inside[to] != head).collect();
        follow[head].sort_unstable();
        follow[head].dedup();
    }
    // Blocks visited first are placed last: those after a loop, then higher ones.
    let arranged = walk(blocks.len(), |block| {
        let after = follow[block].iter().rev();
        after
            .chain(blocks[block].next.iter().rev())
            .copied()
            .collect()
    });
    let mut order: Vec<usize> = arranged.left.into_iter().rev().collect();
    // Unreachable blocks come last.
    let mut placed = vec![false; blocks.len()];
    order.iter().for_each(|&block| placed[block] = true);
    order.extend((0..blocks.len()).filter(|&block| !placed[block]));
    Some(order)
}

/// Writes the blocks in a new order, and adds branches where they no longer fall through.
fn lay_out(program: &mut Program, start: usize, blocks: &[Block], order: &[usize]) {
    let code = program.code.split_off(start);
    let lines = program.lines.split_off(start);
    let mut moved = vec![0_u32; code.len() + 1];
    let position = |program: &Program| u32::try_from(program.code.len()).unwrap_or(u32::MAX);
    for (n, &number) in order.iter().enumerate() {
        let block = &blocks[number];
        moved[block.first] = position(program);
        program
            .code
            .extend_from_slice(&code[block.first..block.end]);
        program
            .lines
            .extend_from_slice(&lines[block.first..block.end]);
        let next = order.get(n + 1).copied();
        if let Some(falls) = block.falls
            && next != Some(falls)
        {
            let line = lines[block.end - 1];
            let target = u32::try_from(start + blocks[falls].first).unwrap_or(u32::MAX);
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
            && block.next.len() == 1
            && next == block.next.first().copied()
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
    for inst in &program.code[start..] {
        if inst.op != Op::Ext {
            continue;
        }
        match program.ext.get_mut(inst.a as usize) {
            Some(Ext::Bra { target }) => there(target),
            Some(Ext::BrxIdx { targets, .. }) => targets.iter_mut().for_each(there),
            _ => {}
        }
    }
}
