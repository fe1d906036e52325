/** The heads of columns of numbers, in tables of usage and of what happened. A column that is false is left out. */
export function ColumnHeads({ names }: { names: readonly (string | false)[] }) {
  return names.map(
    (name) =>
      name !== false && (
        <th key={name} scope="col" className="is-number">
          {name}
        </th>
      ),
  );
}
