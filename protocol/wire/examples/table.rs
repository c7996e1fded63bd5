//! Prints the call table: as a Markdown page, or with `--json` for programs.

use paragpu_protocol::call::CallInfo;
use paragpu_protocol::table::CALLS;

fn main() {
    if std::env::args().any(|argument| argument == "--json") {
        let calls: Vec<String> = CALLS.iter().map(|call| json(call)).collect();
        println!("[{}]", calls.join(",\n"));
    } else {
        println!("| number | call | class | idempotent | parameters | reply | serves |");
        println!("|---|---|---|---|---|---|---|");
        for call in CALLS {
            println!("{}", row(call));
        }
    }
}

fn row(call: &CallInfo) -> String {
    let parameters: Vec<String> = call
        .parameters
        .iter()
        .map(|(name, kind)| format!("{name}: {kind}"))
        .collect();
    format!(
        "| {:#06x} | {} | {:?} | {} | {} | {} | {} |",
        call.number,
        call.name,
        call.class,
        if call.idempotent { "yes" } else { "" },
        parameters.join(", "),
        call.reply,
        call.doc.trim().replace('\n', " ")
    )
}

fn json(call: &CallInfo) -> String {
    let parameters: Vec<String> = call
        .parameters
        .iter()
        .map(|(name, kind)| format!("[{name:?},{kind:?}]"))
        .collect();
    format!(
        "{{\"number\":{},\"name\":{:?},\"class\":\"{:?}\",\"idempotent\":{},\"capability\":\"{:?}\",\"parameters\":[{}],\"reply\":{:?},\"doc\":{:?}}}",
        call.number,
        call.name,
        call.class,
        call.idempotent,
        call.capability,
        parameters.join(","),
        call.reply,
        call.doc.trim()
    )
}
