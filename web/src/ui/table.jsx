import "./table.css";

// A table that becomes a list of cards on a narrow screen. columns: [{name, cell(row), numeric}];
// rows have an id. `caption` says what it lists, to those who do not see it.
export function Table({ caption, columns, rows }) {
  return (
    <table class="table">
      <caption class="unseen">{caption}</caption>
      <thead>
        <tr>
          {columns.map(({ name, numeric }) => (
            <th scope="col" class={numeric ? "numeric" : undefined} key={name}>
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.id}>
            {columns.map(({ name, cell, numeric }) => (
              <td data-name={name} class={numeric ? "numeric" : undefined} key={name}>
                {cell(row)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
