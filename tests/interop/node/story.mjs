// What every script here needs: the broker's URL, a name of its own, and one line of JSON at the end.
import amqp from 'amqplib';

const [url, name] = process.argv.slice(2);

const alarm = setTimeout(() => { console.error('it hangs'); process.exit(3); }, 20_000);

export { amqp, name, url };

export function tell(facts) {
  clearTimeout(alarm);
  console.log(JSON.stringify(facts));
}

export function first(channel, queue, options) {
  return new Promise((resolve, reject) => channel.consume(queue, resolve, options).catch(reject));
}

// Two queues: what is rejected in the first arrives in the second.
export async function deadLettering(channel) {
  const dead = `${name}.dead`;
  await channel.assertQueue(dead, { durable: true });
  await channel.assertQueue(name, { durable: true, deadLetterExchange: '', deadLetterRoutingKey: dead });
  return dead;
}
