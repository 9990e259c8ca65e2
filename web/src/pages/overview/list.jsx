// All jobs, a page at a time, by state and name. What is chosen stands in the address.
import { useState } from "preact/hooks";
import { count, percent } from "../../lib/format.js";
import { useLive } from "../../lib/poll.js";
import { place, replaceQuery } from "../../lib/router.js";
import { Badge, STATES } from "../../ui/badge.jsx";
import { Button } from "../../ui/button.jsx";
import { Progress } from "../../ui/meter.jsx";
import { Notice } from "../../ui/notice.jsx";
import { Section } from "../../ui/section.jsx";
import { Table } from "../../ui/table.jsx";
import { Ago } from "../../ui/time.jsx";
import { JobLink } from "./now.jsx";

const PAGE = 25;

const columns = [
  { name: "Job", numeric: true, cell: (job) => job.id },
  { name: "Name", cell: (job) => <JobLink job={job} /> },
  { name: "State", cell: (job) => <Badge state={job.state} /> },
  {
    name: "Steps",
    cell: (job) => (
      <span class="list-steps number">
        <Progress label={`Steps of ${job.name}`} done={job.step} total={job.steps} state={job.state} />
        <span>
          {count(job.step)} of {count(job.steps)} <span class="muted">{percent(job.step, job.steps)}</span>
        </span>
      </span>
    ),
  },
  { name: "Reason", cell: (job) => job.reason },
  {
    name: "Changed",
    cell: (job) => <Ago time={job.updated_at ?? job.created_at} />,
  },
];

function Filters({ state, name, choose }) {
  const [typed, setTyped] = useState(name);
  function submit(event) {
    event.preventDefault();
    choose({ state, name: typed.trim() });
  }
  return (
    <form class="filters" role="search" onSubmit={submit}>
      <label>
        State{" "}
        <select value={state} onChange={(event) => choose({ state: event.target.value, name })}>
          <option value="">any</option>
          {STATES.map((word) => (
            <option value={word} key={word}>
              {word}
            </option>
          ))}
        </select>
      </label>
      <label>
        Name, exactly{" "}
        <input type="search" value={typed} maxLength={256} onInput={(event) => setTyped(event.target.value)} />
      </label>
      <Button type="submit">Filter</Button>
    </form>
  );
}

export function JobList() {
  const { state = "", name = "", pages = "" } = place.value.query;
  // The cursors of the pages up to this one: a cursor leads forth only.
  const cursors = pages ? pages.split("-") : [];
  const query = new URLSearchParams({ limit: PAGE });
  if (state) query.set("state", state);
  if (name) query.set("name", name);
  if (cursors.length) query.set("cursor", cursors.at(-1));
  const { value, problem } = useLive(`/v1/jobs?${query}`, { every_s: 5, keep: true });
  const show = (list) => replaceQuery({ state, name, pages: list.join("-") });
  return (
    <Section
      title="All jobs"
      aside={<Filters state={state} name={name} choose={(choice) => replaceQuery(choice)} key={name} />}
    >
      {problem && <Notice tone="bad">{problem.message}</Notice>}
      {value && value.jobs.length === 0 && <p class="muted">No job is like that.</p>}
      {value && value.jobs.length > 0 && (
        <Table caption="All jobs, the newest first" columns={columns} rows={value.jobs} />
      )}
      {(cursors.length > 0 || value?.next_cursor) && (
        <nav class="paging" aria-label="Pages of the list">
          <Button disabled={!cursors.length} onClick={() => show([])}>
            Newest
          </Button>
          <Button disabled={!cursors.length} onClick={() => show(cursors.slice(0, -1))}>
            Newer
          </Button>
          <span class="muted number">page {cursors.length + 1}</span>
          <Button disabled={!value?.next_cursor} onClick={() => show([...cursors, value.next_cursor])}>
            Older
          </Button>
        </nav>
      )}
    </Section>
  );
}
