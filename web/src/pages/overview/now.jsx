// The jobs of the moment: what runs, what waits, what failed.
import { ago, compact, count, duration, number, percent, when } from "../../lib/format.js";
import { useLive } from "../../lib/poll.js";
import { href } from "../../lib/router.js";
import { Badge } from "../../ui/badge.jsx";
import { Progress } from "../../ui/meter.jsx";
import { Facts, Section } from "../../ui/section.jsx";
import { Sparkline } from "../../ui/sparkline.jsx";

const CURVE_POINTS = 60;

export function JobLink({ job }) {
  return (
    <a class="job-link" href={href(`/jobs/${job.id}`)}>
      {job.name}
    </a>
  );
}

function Loss({ job }) {
  const path = `/v1/jobs/${job.id}/metrics?keys=loss&points=${CURVE_POINTS}`;
  const values = useLive(path, { every_s: 5 }).value?.series.loss.values ?? [];
  return <Sparkline label={`Loss of ${job.name} over its steps`} values={values} />;
}

function RunningJob({ job: summary }) {
  const job = useLive(`/v1/jobs/${summary.id}`).value ?? summary;
  const latest = (key) => job.latest?.[key]?.value;
  const facts = [
    ["Loss", `${number(latest("loss"), 4)} nats/token`],
    ["Speed", `${compact(latest("tokens_per_s"))} tokens/s`],
    ["Time left", duration(job.seconds_left)],
    ["On", `${count(job.world)} ${job.device === "cuda" ? "GPU" : "CPU"} ${job.world === 1 ? "rank" : "ranks"}`],
  ];
  return (
    <li class="running-job">
      <div class="running-name">
        <JobLink job={job} />
        <Badge state={job.state} />
        {job.intent !== "run" && <span class="muted">{job.intent} asked for</span>}
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

export function Running({ jobs }) {
  return (
    <Section title={`Running (${jobs.length})`}>
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
  if (!task) return "Its data will be prepared.";
  const { done, total, unit } = task.progress;
  if (task.state === "queued") return "The preparation of its data waits for a free slot.";
  return `Its data is being prepared${total ? `: ${percent(done, total)} of ${compact(total)} ${unit ?? ""}` : ""}.`;
}

function reason(job, draining) {
  if (job.reason) return job.reason;
  if (job.state !== "queued") return "";
  return draining ? "the node takes no new work" : "waits for its turn";
}

export function Waiting({ jobs, more, draining }) {
  return (
    <Section title={`Waiting (${jobs.length}${more ? " or more" : ""})`}>
      <ul class="brief">
        {[...jobs].reverse().map((job) => (
          <li key={job.id}>
            <JobLink job={job} />
            <Badge state={job.state} />
            <span class="brief-reason">
              {job.state === "preparing" ? <Preparation job={job} /> : reason(job, draining)}
            </span>
            <time class="muted" dateTime={job.created_at} title={when(job.created_at)}>
              submitted {ago(job.created_at)}
            </time>
          </li>
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
            <time class="muted" dateTime={job.finished_at} title={when(job.finished_at)}>
              {ago(job.finished_at)}
            </time>
          </li>
        ))}
      </ul>
    </Section>
  );
}
