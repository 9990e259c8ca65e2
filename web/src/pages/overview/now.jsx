// The jobs of the moment: what runs, what waits and for what, what failed and why.
import { compact, count, duration, number, percent } from "../../lib/format.js";
import { useLive } from "../../lib/poll.js";
import { href } from "../../lib/router.js";
import { Badge } from "../../ui/badge.jsx";
import { Progress } from "../../ui/meter.jsx";
import { Facts, Section } from "../../ui/section.jsx";
import { Sparkline } from "../../ui/sparkline.jsx";
import { Ago } from "../../ui/time.jsx";

const CURVE_POINTS = 60;

export function JobLink({ job }) {
  return (
    <a class="job-link" href={href(`/jobs/${job.id}`)}>
      {job.name}
    </a>
  );
}

// "2 CPU ranks"
function ranks({ world, device }) {
  return `${count(world)} ${device === "cuda" ? "GPU" : "CPU"} ${world === 1 ? "rank" : "ranks"}`;
}

// ---- What runs ----

function Loss({ job }) {
  const path = `/v1/jobs/${job.id}/metrics?keys=loss&points=${CURVE_POINTS}`;
  const values = useLive(path, { every_s: 10 }).value?.series.loss.values ?? [];
  return <Sparkline label={`Loss of ${job.name} over its steps`} values={values} />;
}

function RunningJob({ job: summary }) {
  const job = useLive(`/v1/jobs/${summary.id}`).value ?? summary;
  const latest = (key) => job.latest?.[key]?.value;
  const facts = [
    ["Loss", `${number(latest("loss"), 4)} nats/token`],
    ["Speed", `${compact(latest("tokens_per_s"))} tokens/s`],
    ["Time left", duration(job.seconds_left)],
  ];
  return (
    <li class="running-job">
      <div class="running-name">
        <JobLink job={job} />
        <Badge state={job.state} />
        <span class="muted">
          {ranks(job)}
          {job.intent !== "run" && `; ${job.intent} asked for`}
        </span>
      </div>
      <div class="running-progress">
        <Progress label={`Steps of ${job.name}`} done={job.step} total={job.steps} state={job.state} />
        <span class="number">
          step {count(job.step)} of {count(job.steps)} <span class="muted">{percent(job.step, job.steps)}</span>
        </span>
      </div>
      <Facts of={facts} />
      <Loss job={job} />
      {job.reason && <p class="running-reason muted">{job.reason}</p>}
    </li>
  );
}

export function Running({ jobs, more }) {
  return (
    <Section title={`Running (${jobs.length}${more ? " or more" : ""})`}>
      {jobs.length === 0 && <p class="muted">Nothing runs.</p>}
      <ul class="running">
        {jobs.map((job) => (
          <RunningJob job={job} key={job.id} />
        ))}
      </ul>
    </Section>
  );
}

// ---- What waits ----

function Preparation({ job }) {
  const task = useLive(`/v1/tasks?job_id=${job.id}&limit=1`).value?.tasks[0];
  if (!task) return "Its data will be prepared";
  const { done, total, unit } = task.progress;
  if (task.state === "queued") return "The preparation of its data waits for a free slot";
  return `Its data is being prepared${total ? `: ${percent(done, total)} of ${compact(total)} ${unit ?? ""}` : ""}`;
}

// Jobs are served in the order in which they came: the first one waits for slots, the others for it.
function queueReason(job, first, node) {
  if (node?.draining) return "The node is draining: it takes no new work";
  if (job.id !== first.id) return `Waits behind ${first.name}`;
  if (!node?.load) return "Waits for free slots";
  const [total, used] =
    job.device === "cuda"
      ? [node.gpu_slots, node.load.gpu_slots_in_use]
      : [node.cpu_slots, node.load.cpu_slots_in_use];
  const what = job.device === "cuda" ? "GPUs" : "CPU slots";
  return `Needs ${count(job.world)} ${what}; ${count(Math.max(0, total - used))} of ${count(total)} are free`;
}

function WaitingJob({ job, first, node }) {
  return (
    <li>
      <JobLink job={job} />
      <Badge state={job.state} />
      <span class="brief-reason">
        {job.state === "preparing" && <Preparation job={job} />}
        {job.state === "queued" && queueReason(job, first, node)}
        {job.state === "paused" && (job.reason ?? "Paused")}
      </span>
      <span class="muted">
        submitted <Ago time={job.created_at} />
      </span>
    </li>
  );
}

// The newest that wait, shown in the order in which they came. Of several nodes none is asked.
export function Waiting({ jobs, more, nodes }) {
  const ordered = [...jobs].reverse();
  const first = ordered.find((job) => job.state === "queued");
  return (
    <Section title={`Waiting (${jobs.length}${more ? " or more" : ""})`}>
      <ul class="brief">
        {ordered.map((job) => (
          <WaitingJob job={job} first={first} node={nodes?.length === 1 ? nodes[0] : undefined} key={job.id} />
        ))}
      </ul>
    </Section>
  );
}

// ---- What failed ----

export function Failed({ jobs }) {
  return (
    <Section title="Failed lately">
      <ul class="brief">
        {jobs.map((job) => (
          <li key={job.id}>
            <JobLink job={job} />
            <Badge state={job.state} />
            <span class="brief-reason">
              {job.reason} <span class="muted number">(step {count(job.step)} of {count(job.steps)})</span>
            </span>
            <Ago time={job.finished_at} />
          </li>
        ))}
      </ul>
    </Section>
  );
}
