-- What search asks of a SQLite journal. What it keeps in its own file is in `words.sql`.

-- name: found
select e.place, c.id, e.kind, e.at, e.body, coalesce(e.dead, 0)
from json_each(:places) k join events e on e.place = k.value join conversations c on c.num = e.place >> 32
where c.owner = :owner and e.body is not null
