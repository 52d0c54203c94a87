//! Threads for single pieces of long work: a range over everything, history for a watcher that fell behind, a snapshot.
//!
//! Nobody's latency hangs on them, and on a machine with few processors they would take turns with those on whom it
//! does. So they let all others go first.

/// How much they give way, in the kernel's steps: about a tenth of a processor is left to them where all are busy.
#[cfg(target_os = "linux")]
const STEPS: i32 = 10;

/// From now on all other threads go before this one. Where a thread has no priority of its own nothing happens, and
/// where this is refused it is only taken for as urgent as the others.
pub(crate) fn give_way() {
    #[cfg(target_os = "linux")]
    {
        let thread = Some(rustix::thread::gettid());
        let _ = rustix::process::getpriority_process(thread)
            .and_then(|niceness| rustix::process::setpriority_process(thread, niceness + STEPS));
    }
}

/// A runtime for one thread, with others behind it for what would block that one: those give way.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().on_thread_start(give_way).build()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// As `ps` shows it.
    fn niceness() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux tells");
        let fields = stat.rsplit_once(')').expect("the name stands in brackets").1;
        fields.split_whitespace().nth(16).and_then(|field| field.parse().ok()).expect("the 19th field of all")
    }

    #[test]
    fn long_work_gives_way_to_those_who_serve() {
        let usual = niceness();
        let runtime = runtime().unwrap();
        let (serving, long) =
            runtime.block_on(async { (niceness(), tokio::task::spawn_blocking(niceness).await.unwrap()) });
        assert_eq!((serving, long), (usual, (usual + STEPS).min(19)));
        assert_eq!(niceness(), usual);
    }
}
