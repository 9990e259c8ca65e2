import { useId } from "preact/hooks";
import "./section.css";

// A part of a page with its heading; `aside` stands at the heading's right.
export function Section({ title, aside, children }) {
  const id = useId();
  return (
    <section class="section" aria-labelledby={id}>
      <header>
        <h2 id={id}>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  );
}

// Names and values, each value with its unit in it: <Facts of={[["Steps", "3 of 10"]]} />
export function Facts({ of }) {
  return (
    <dl class="facts">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
