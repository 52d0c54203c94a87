//! The simulation can fail: every bug that is put in on purpose is found. Each of the scenarios that broke
//! others, or earlier drafts, is one of them; `docs/simulation.md` has the table.

use tenure_machine::planted::Bug;
use tenure_sim::{Planted, Setting, TIMELINE_LINES, explain, run};
use tenure_storage::planted::Bug as StorageBug;
