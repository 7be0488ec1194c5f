//! A process that is killed under load loses nothing it acknowledged.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use store::*;

const DIR: &str = "FERRY_STORE_CRASH_DIR";
const WRITERS: usize = 8;
const ROUNDS: usize = 6;

/// Small limits, so that a kill also hits rolling, compaction and the writing of a base.
fn options() -> Options {
    Options {
        segment_bytes: 64 << 10,
        history_bytes: 128 << 10,
        history: std::time::Duration::from_millis(20),
        ..Options::default()
    }
}

/// Not a test but the process that is killed: each writer counts up in its own key and says what was acknowledged.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = Arc::new(Embedded::open(Path::new(&dir), options()).unwrap());
        let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(count(store.clone(), writer))).collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

async fn count(store: Arc<Embedded>, writer: usize) {
    let key = format!("key-{writer}");
    let mut next = value(&store, &key).await + 1;
    loop {
        let value = format!("{next} {}", "x".repeat(next % 700));
        store.txn(Txn { success: vec![Op::put(key.clone(), value)], ..Txn::default() }).await.unwrap();
        writeln!(std::io::stdout(), "acked {writer} {next}").unwrap();
        next += 1;
    }
}

async fn value(store: &Embedded, key: &str) -> usize {
    let result = store.range(Range::key(key.to_owned())).await.unwrap();
    let text = result.kvs.first().map_or(String::new(), |kv| String::from_utf8_lossy(&kv.value).into_owned());
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[test]
fn an_acknowledged_write_survives_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut acked = [0; WRITERS];
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::child", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut seen = 0;
        // Killed in the middle of its work; what it had already said is read to the end.
        for line in lines {
            let words: Vec<&str> = line.rsplit("acked ").next().unwrap().split(' ').collect();
            if let [writer, number] = words[..]
                && let (Ok(writer), Ok(number)) = (writer.parse::<usize>(), number.parse::<usize>())
            {
                acked[writer] = acked[writer].max(number);
                seen += 1;
            }
            if seen == 300 + round * 137 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= 300, "the child wrote {seen}");
        let store = Embedded::open(dir.path(), options()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (writer, acked) in acked.iter().enumerate() {
            let found = runtime.block_on(value(&store, &format!("key-{writer}")));
            assert!(
                found == *acked || found == acked + 1,
                "round {round}: writer {writer} acked {acked}, found {found}"
            );
        }
    }
}
