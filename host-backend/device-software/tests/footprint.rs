//! The memory that loading PTX takes, for each byte of text. The worker charges for it before
//! it loads a module (`session/module.rs`).

#![allow(unsafe_code)]

use paragpu_device::{PTX_COMPILED, PTX_COMPILING};
use paragpu_device_software::{decode, ptx::parser};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes allocated, and the most so far.
static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

/// The bytes that glibc takes for an allocation.
fn taken(bytes: usize) -> usize {
    (bytes + 8).next_multiple_of(16).max(32)
}

fn grown(bytes: usize) {
    let held = HELD.fetch_add(taken(bytes), Relaxed) + taken(bytes);
    PEAK.fetch_max(held, Relaxed);
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(taken(layout.size()), Relaxed);
        // SAFETY: as for this function.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Large allocations are remapped, not copied.
        HELD.fetch_sub(taken(layout.size()), Relaxed);
        grown(size);
        // SAFETY: as for this function.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes of text of each shape.
const BYTES: usize = 1 << 18;
const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// Text made of a pattern, in which `#` is another name each time.
fn many(pattern: &str) -> String {
    let mut out = String::new();
    for n in 0.. {
        if out.len() >= BYTES {
            break;
        }
        let mut name = String::new();
        let mut rest: u32 = n;
        loop {
            name.push(char::from(b'a' + (rest % 26) as u8));
            rest /= 26;
            if rest == 0 {
                break;
            }
        }
        out.push_str(&pattern.replace('#', &name));
    }
    out
}

fn kernel(body: &str) -> String {
    let registers = ".reg .pred p;.reg .b32 r;.reg .b64 d;";
    format!("{HEAD}.visible .entry k(){{{registers}\nA:{body}\nret;}}\n")
}

fn shapes() -> Vec<(&'static str, String)> {
    let mut shapes = Vec::new();
    for pattern in [
        "ret;",
        "exit;",
        "trap;",
        "{}",
        "bra A;",
        "@p bra A;",
        "#:",
        "bar.sync 0;",
        "mov.b32 r,r;",
        "{.reg .b32 a;}",
        "{.param .b32 a;}",
        "{#: bra #;}",
        "@p ret;#:",
        ".shared .b8 #;",
        ".local .b8 #;",
        "#:.branchtargets A;",
        "#:.branchtargets A,A,A,A,A,A,A,A;",
        "membar.gl;",
        "ld.b32 r,[d];",
        "st.b32 [d],r;",
        "red.add.u32 [d],r;",
        "ld.v4.b32 {r,r,r,r},[d];",
        "rem.s32 r,r,r;",
        "activemask.b32 r;",
        "tex.2d.v4.u32.s32 {r,r,r,r},[d,{r,r}];",
        "sust.b.1d.b32.trap [d,{r}],r;",
        "cp.async.wait_all;",
        "vote.ballot.b32 r,p;",
        "cp.async.ca.shared.global [r],[d],4;",
        "mbarrier.inval.b64 [d];",
        ".reg .b32 #;",
    ] {
        shapes.push((pattern, kernel(&many(pattern))));
    }
    for pattern in [
        ".func #(){}",
        ".func #(){ret;}",
        ".entry #(){}",
        ".entry #(){ret;}",
        ".func #();",
        ".extern .func #;",
        ".global .b8 #;",
        ".global .b8 #=1;",
        ".shared .b8 #;",
        ".weak .func #(){}",
        ".func #(.reg .b32 a){}",
        ".entry #(.param .b8 a){}",
        ".file 1 \"\";",
    ] {
        shapes.push((pattern, format!("{HEAD}{}", many(pattern))));
    }
    let calls = format!("{HEAD}.func f(){{}}.entry k(){{{}}}", many("call f;"));
    shapes.push(("call f;", calls));
    for (pattern, head) in [
        ("ret;", ".local"),
        ("stackrestore.u64 d;", ".local"),
        ("call f,(r);", ".func f(.param .b32 a){}"),
        (
            "call (r),f,(r);",
            ".func (.param .b32 b) f(.param .b32 a){}",
        ),
    ] {
        let (before, first) = match head {
            ".local" => ("", "alloca.u64 d,8;"),
            head => (head, ""),
        };
        let registers = ".reg .b32 r;.reg .b64 d;";
        let body = many(pattern);
        shapes.push((
            pattern,
            format!("{HEAD}{before}.entry k(){{{registers}{first}{body}}}"),
        ));
    }
    let parameters = ".param .b32 a,".repeat(99);
    let calls = many(&format!("call f,({}r);", "r,".repeat(99)));
    let calls =
        format!("{HEAD}.func f({parameters}.param .b32 a){{}}.entry k(){{.reg .b32 r;{calls}}}");
    shapes.push(("calls with many arguments", calls));
    let results = ".reg .b32 a,".repeat(99);
    let returns = many("ret;");
    let returns = format!("{HEAD}.func ({results}.reg .b32 a) f(){{{returns}}}");
    shapes.push(("ret; of many results", returns));
    let values = "1,".repeat(BYTES / 2);
    shapes.push((
        "values",
        format!("{HEAD}.global .b8 v[{BYTES}]={{{values}1}};"),
    ));
    let values = "v,".repeat(BYTES / 2);
    shapes.push((
        "addresses",
        format!("{HEAD}.global .b64 v[{BYTES}]={{{values}v}};"),
    ));
    let targets = "A,".repeat(BYTES / 2);
    shapes.push((
        "targets",
        kernel(&format!("T: .branchtargets {targets}A; brx.idx r,T;")),
    ));
    let list = format!(
        "T: .branchtargets {}A;{}",
        "A,".repeat(1000),
        many("brx.idx r,T;")
    );
    shapes.push(("brx.idx", kernel(&list)));
    shapes
}

#[test]
fn a_text_takes_what_is_charged_for_it() {
    for (shape, text) in shapes() {
        let before = HELD.load(Relaxed);
        PEAK.store(before, Relaxed);
        let module = parser::parse(&text).unwrap();
        let addresses = module.variables.iter().map(|v| (v.name, 1 << 40));
        let addresses: HashMap<&str, u64> = addresses.collect();
        let program = decode::decode(&module, &addresses).unwrap();
        let refused = program.funcs.iter().find_map(|f| f.refused.as_ref());
        assert!(refused.is_none(), "{shape}: {refused:?}");
        drop(addresses);
        drop(module);
        let (peak, left) = (PEAK.load(Relaxed) - before, HELD.load(Relaxed) - before);
        let peak = peak.div_ceil(text.len());
        let told = program.footprint();
        println!("{shape}: {peak} times its size, then {left} bytes, of which it tells {told}");
        assert!(told >= left, "{shape}: {left} bytes are left, not {told}");
        // No more than the worst case, which is charged otherwise.
        assert!(
            told <= text.len() * PTX_COMPILED as usize,
            "{shape}: {told}"
        );
        assert!(
            peak as u64 <= PTX_COMPILING,
            "{shape}: {peak} times its size"
        );
        drop(program);
    }
}
