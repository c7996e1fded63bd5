//! Graphs as DOT text (cuGraphDebugDotPrint).

use std::fmt::{self, Write};
use std::sync::Arc;

use paragpu_client::objects::edge::{Dependency, Edge};
use paragpu_client::objects::graph::{CopyNodeEnd, CopyWork, Graph, Kernel, Work};

/// The details to print in addition to nodes, kinds, kernels' names and edges
/// (CUgraphDebugDot_flags).
#[derive(Debug, Clone, Copy)]
pub struct Details(u32);

impl Details {
    const VERBOSE: u32 = 1;
    const KERNEL: u32 = 1 << 2;
    const COPY: u32 = 1 << 3;
    const MEMSET: u32 = 1 << 4;
    const HOST: u32 = 1 << 5;
    const EVENT: u32 = 1 << 6;
    const KERNEL_ATTRIBUTES: u32 = 1 << 9;
    const HANDLES: u32 = 1 << 10;
    const CONDITIONAL: u32 = 1 << 15;
    const ALL: u32 = (1 << 16) - 1;

    /// The details that flags select. Unknown flags select none, nor do flags for
    /// types, for further topology, and for kinds of nodes that do not exist here.
    #[must_use]
    pub fn of(flags: u32) -> Self {
        Self(flags & Self::ALL)
    }

    fn has(self, flag: u32) -> bool {
        self.0 & (flag | Self::VERBOSE) != 0
    }
}

/// The graph, and those in its nodes.
#[must_use]
pub fn print(graph: &Arc<Graph>, details: Details) -> String {
    let mut out = String::from("digraph dot {\n");
    // Writing to a String cannot fail.
    let _ = cluster(&mut out, graph, details);
    out.push_str("}\n");
    out
}

fn cluster(out: &mut String, graph: &Graph, details: Details) -> fmt::Result {
    let id = graph.id();
    writeln!(out, "subgraph cluster_{id} {{")?;
    writeln!(out, "label=\"graph_{id}\" graph[style=\"dashed\"];")?;
    let mut children = Vec::new();
    for number in graph.nodes() {
        // Another thread may have removed the node.
        let Ok(work) = graph.work(number) else {
            continue;
        };
        let (shape, label) = (shape(&work), label(graph, number, &work, details)?);
        writeln!(
            out,
            "\"graph_{id}_node_{number}\"[shape=\"{shape}\" label=\"{}\"];",
            escape(&label)
        )?;
        match work {
            Work::Child(child) => children.push((number, child)),
            Work::Conditional(conditional) => {
                let bodies = conditional.bodies.iter().cloned();
                children.extend(bodies.map(|body| (number, body)));
            }
            _ => {}
        }
    }
    for (from, to) in graph.edges() {
        let Dependency { node: from, edge } = from;
        write!(
            out,
            "\"graph_{id}_node_{from}\" -> \"graph_{id}_node_{to}\""
        )?;
        if edge != Edge::Full {
            write!(out, "[label=\"{edge:?}\"]")?;
        }
        out.push_str(";\n");
    }
    out.push_str("}\n");
    for (number, child) in children {
        cluster(out, &child, details)?;
        for root in child.roots() {
            writeln!(
                out,
                "\"graph_{id}_node_{number}\" -> \"graph_{}_node_{root}\"[style=\"dashed\"];",
                child.id()
            )?;
        }
    }
    Ok(())
}

fn shape(work: &Work) -> &'static str {
    match work {
        Work::Kernel(_) => "octagon",
        Work::Copy(_) | Work::Memset(_) => "invtrapezium",
        Work::Host(_) => "diamond",
        Work::Child(_) => "folder",
        Work::Empty
        | Work::Memory(_)
        | Work::MemAlloc(..)
        | Work::MemFree(_)
        | Work::EventRecord(_)
        | Work::EventWait(_) => "rectangle",
        Work::Conditional(_) => "trapezium",
    }
}

fn label(graph: &Graph, number: u32, work: &Work, details: Details) -> Result<String, fmt::Error> {
    let mut out = format!("{number}\n");
    match work {
        Work::Empty => out.push_str("EMPTY"),
        Work::Kernel(kernel) => kernel_label(&mut out, kernel, details)?,
        Work::Copy(copy) => copy_label(&mut out, copy, details)?,
        Work::Memset(fill) => {
            out.push_str("MEMSET");
            if details.has(Details::MEMSET) {
                write!(
                    out,
                    "\naddress {:#x}\nvalue {:#x}, {} bytes\nwidth {}, height {}, pitch {}",
                    fill.destination, fill.value, fill.element, fill.width, fill.height, fill.pitch
                )?;
            }
        }
        Work::Memory(_) => out.push_str("BATCH_MEM_OP"),
        Work::MemAlloc(memory, size) => {
            write!(
                out,
                "MEM_ALLOC\naddress {:#x}, {size} bytes",
                memory.address
            )?;
        }
        Work::MemFree(memory) => write!(out, "MEM_FREE\naddress {:#x}", memory.address)?,
        Work::Host(call) => {
            out.push_str("HOST");
            if details.has(Details::HOST) {
                write!(out, "\n{:#x}({:#x})", call.function, call.argument)?;
            }
        }
        Work::Conditional(conditional) => {
            write!(out, "CONDITIONAL\n{:?}", conditional.kind)?;
            if details.has(Details::CONDITIONAL) {
                write!(out, "\nhandle {:#x}", conditional.condition.handle())?;
            }
        }
        Work::Child(child) => write!(out, "CHILD\ngraph_{}", child.id())?,
        Work::EventRecord(marked) | Work::EventWait(marked) => {
            out.push_str(match work {
                Work::EventRecord(_) => "EVENT_RECORD",
                _ => "EVENT_WAIT",
            });
            if details.has(Details::EVENT) {
                write!(out, "\nevent {:#x}", marked.handle)?;
            }
        }
    }
    if details.has(Details::HANDLES) {
        write!(out, "\nnode {number} of graph {}", graph.id())?;
    }
    Ok(out)
}

fn kernel_label(out: &mut String, kernel: &Kernel, details: Details) -> fmt::Result {
    let shape = &kernel.shape;
    write!(out, "KERNEL\n{}", kernel.function.name())?;
    if details.has(Details::KERNEL) {
        let list = |numbers: [u32; 3]| numbers.map(|n| n.to_string()).join(",");
        write!(
            out,
            "\n<<<({}),({}),{}>>>",
            list(shape.grid),
            list(shape.block),
            shape.dynamic_shared
        )?;
        for (offset, size) in kernel.function.parameters() {
            let start = *offset as usize;
            let bytes = kernel.parameters.get(start..start + *size as usize);
            write!(out, "\nparameter at {offset}: ")?;
            bytes
                .unwrap_or_default()
                .iter()
                .try_for_each(|byte| write!(out, "{byte:02x}"))?;
        }
    }
    if details.has(Details::KERNEL_ATTRIBUTES) {
        write!(
            out,
            "\ncooperative {}\ncluster {:?}",
            u8::from(shape.cooperative),
            shape.cluster
        )?;
    }
    if details.has(Details::HANDLES) {
        write!(out, "\nfunction {:#x}", kernel.handle)?;
    }
    Ok(())
}

fn copy_label(out: &mut String, copy: &CopyWork, details: Details) -> fmt::Result {
    let (from, to) = (&copy.source, &copy.destination);
    write!(out, "MEMCPY\n{} to {}", kind(from), kind(to))?;
    if details.has(Details::COPY) {
        write!(out, "\nfrom ")?;
        end(out, from)?;
        write!(out, "\nto ")?;
        end(out, to)?;
        let [width, height, depth] = copy.extent;
        write!(out, "\nwidth {width}, height {height}, depth {depth}")?;
    }
    Ok(())
}

fn kind(end: &CopyNodeEnd) -> &'static str {
    match end {
        CopyNodeEnd::Device { .. } => "device",
        CopyNodeEnd::Host { .. } => "host",
        CopyNodeEnd::Array { .. } => "array",
    }
}

fn end(out: &mut String, end: &CopyNodeEnd) -> fmt::Result {
    match end {
        CopyNodeEnd::Device { address, pitch, .. } | CopyNodeEnd::Host { address, pitch, .. } => {
            write!(out, "{address:#x}, pitch {pitch}")
        }
        CopyNodeEnd::Array { origin, .. } => write!(out, "{origin:?}"),
    }
}

/// Text inside a quoted label.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_client::objects::graph::Fill;

    fn graph() -> Arc<Graph> {
        let child = Graph::new();
        child.add(Work::Empty, &[]).unwrap();
        let graph = Graph::new();
        let fill = Work::Memset(Fill {
            ordinal: 0,
            destination: 0x1234,
            pitch: 0,
            value: 7,
            element: 4,
            width: 99,
            height: 1,
        });
        graph.add(fill, &[]).unwrap();
        graph
            .add(Work::Child(child.embed().unwrap()), &[0.into()])
            .unwrap();
        graph
    }

    #[test]
    fn nodes_edges_and_children_are_printed() {
        let graph = graph();
        let text = print(&graph, Details::of(0));
        let id = graph.id();
        for part in [
            format!("\"graph_{id}_node_0\"[shape=\"invtrapezium\" label=\"0\\nMEMSET\"];"),
            format!("\"graph_{id}_node_0\" -> \"graph_{id}_node_1\";"),
            format!("\"graph_{id}_node_1\" -> \"graph_"),
            "label=\"0\\nEMPTY\"".into(),
        ] {
            assert!(text.contains(&part), "{part} in {text}");
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        assert_eq!(text.matches("subgraph").count(), 2);
    }

    #[test]
    fn flags_select_details() {
        let graph = graph();
        let printed = |flags| print(&graph, Details::of(flags)).contains("0x1234");
        assert!(!printed(0) && !printed(Details::KERNEL));
        assert!(printed(Details::MEMSET) && printed(Details::VERBOSE));
        assert!(!printed(1 << 16), "an unknown flag names nothing");
    }

    #[test]
    fn labels_stay_quoted() {
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
