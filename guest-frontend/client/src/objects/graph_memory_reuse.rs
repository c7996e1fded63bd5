//! Memory that nodes of a graph allocate one after another, because earlier ones have freed it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::objects::edge::Dependency;
use crate::objects::graph::{Graph, Work};
use crate::objects::graph_memory::GraphMemory;

impl Graph {
    /// The smallest memory of a device with `size` bytes that no node needs any more before one
    /// that comes after `after`. That node is expected to allocate it.
    pub(crate) fn reuse_memory(
        &self,
        after: &[Dependency],
        ordinal: u32,
        size: u64,
    ) -> Option<Arc<GraphMemory>> {
        let mut lives: HashMap<u64, Lives> = HashMap::new();
        let fits = |memory: &GraphMemory| memory.ordinal == ordinal && memory.size >= size;
        self.for_each_before(after, |work| match work {
            Work::MemAlloc(memory, _) if fits(memory) => Lives::of(&mut lives, memory).begun += 1,
            Work::MemFree(memory) if fits(memory) => Lives::of(&mut lives, memory).ended += 1,
            _ => {}
        });
        let mut free: Vec<Lives> = lives.into_values().filter(Lives::are_over).collect();
        free.sort_by_key(|it| (it.memory.size, it.memory.address));
        let mut free = free.into_iter();
        let reused = free.find(|it| it.memory.begin_lifetime(it.ended));
        reused.map(|it| it.memory)
    }
}

/// The nodes before another that allocate and free the same memory.
struct Lives {
    memory: Arc<GraphMemory>,
    begun: u64,
    ended: u64,
}

impl Lives {
    fn of<'a>(all: &'a mut HashMap<u64, Self>, memory: &Arc<GraphMemory>) -> &'a mut Self {
        all.entry(memory.address).or_insert_with(|| Self {
            memory: Arc::clone(memory),
            begun: 0,
            ended: 0,
        })
    }

    /// Whether the memory is free again. What another graph allocates never is.
    fn are_over(&self) -> bool {
        self.begun == self.ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::error::Result;
    use crate::objects::graph_memory::Backing;

    const DEVICE: u32 = 9;

    /// Addresses of which none is given out twice.
    #[derive(Debug)]
    struct Addresses(AtomicU64);

    impl Backing for Addresses {
        fn allocate(&self, size: u64) -> Result<u64> {
            Ok(self.0.fetch_add(size, Ordering::Relaxed))
        }

        fn free(&self, _: u64) -> Result<()> {
            Ok(())
        }
    }

    struct Made {
        graph: Arc<Graph>,
        backing: Arc<Addresses>,
    }

    impl Made {
        fn new(first: u64) -> Self {
            Self {
                graph: Graph::new(),
                backing: Arc::new(Addresses(AtomicU64::new(first))),
            }
        }

        fn add(&self, work: Work, after: &[u32]) -> u32 {
            let after: Vec<Dependency> = after.iter().copied().map(Dependency::from).collect();
            self.graph.add(work, &after).unwrap().number
        }

        /// A node that allocates; its number and memory.
        fn allocate(&self, size: u64, after: &[u32]) -> (u32, Arc<GraphMemory>) {
            let before: Vec<Dependency> = after.iter().copied().map(Dependency::from).collect();
            let reused = self.graph.reuse_memory(&before, DEVICE, size);
            let memory = reused.unwrap_or_else(|| {
                GraphMemory::new(DEVICE, Arc::clone(&self.backing) as _, size).unwrap()
            });
            let node = self.add(Work::MemAlloc(Arc::clone(&memory), size), after);
            (node, memory)
        }

        /// A node that allocates and one that frees: the second's number, and the memory.
        fn lifetime(&self, size: u64, after: &[u32]) -> (u32, Arc<GraphMemory>) {
            let (node, memory) = self.allocate(size, after);
            let freed = self.add(Work::MemFree(Arc::clone(&memory)), &[node]);
            (freed, memory)
        }
    }

    #[test]
    fn memory_freed_before_a_node_is_reused() {
        let made = Made::new(0x9000_0000);
        let (freed, first) = made.lifetime(100, &[]);
        let between = made.add(Work::Empty, &[freed]);
        let (node, second) = made.allocate(60, &[between]);
        assert_eq!(second.address, first.address);
        // It is in use again.
        let (_, third) = made.allocate(60, &[node]);
        assert_ne!(third.address, first.address);
        let freed = made.add(Work::MemFree(second), &[node]);
        let (_, fourth) = made.lifetime(100, &[freed]);
        assert_eq!(fourth.address, first.address);
        let (_, larger) = made.allocate(101, &[freed]);
        assert_ne!(larger.address, first.address);
        assert!(
            made.graph
                .reuse_memory(&[freed.into()], DEVICE + 1, 1)
                .is_none()
        );
    }

    #[test]
    fn branches_share_no_memory() {
        let made = Made::new(0xa000_0000);
        let start = made.add(Work::Empty, &[]);
        let (left, one) = made.lifetime(100, &[start]);
        let (right, other) = made.lifetime(100, &[start]);
        assert_ne!(one.address, other.address);
        // Both are free after both branches; each is reused once.
        let (_, again) = made.allocate(100, &[left, right]);
        let (_, last) = made.allocate(100, &[left, right]);
        let mut reused = [again.address, last.address];
        reused.sort_unstable();
        assert_eq!(reused, [one.address, other.address]);
        let (_, none_left) = made.allocate(100, &[left, right]);
        assert!(!reused.contains(&none_left.address));
    }

    #[test]
    fn the_smallest_memory_is_reused() {
        let made = Made::new(0xb000_0000);
        let (large, _) = made.lifetime(100, &[]);
        let (small, memory) = made.lifetime(50, &[]);
        let (_, reused) = made.allocate(40, &[large, small]);
        assert_eq!(reused.address, memory.address);
    }

    #[test]
    fn memory_of_another_graph_is_not_reused() {
        let (made, other) = (Made::new(0xc000_0000), Made::new(0xd000_0000));
        let (_, memory) = made.allocate(100, &[]);
        let freed = other.add(Work::MemFree(Arc::clone(&memory)), &[]);
        let (_, own) = other.allocate(100, &[freed]);
        assert_ne!(own.address, memory.address);
    }
}
